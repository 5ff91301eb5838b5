// What a search shows first: pages of use, then of the code, results and the changelog last. The other numbers are Sphinx's own.
const USE = /^docs\/(tutorials|how-to)\//;
var Scorer = {
  score: ([page, , , , score]) =>
    score + (/^(results\/|CHANGELOG)/.test(page) ? -30 : USE.test(page) ? 20 : /^docs\/(reference\/[\w-]+$|explanation|faq)/.test(page) ? 10 : 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
