"""What is wrong, or deserves a look, in a data set: copies, wrong labels, boxes that look like mistakes."""
