"""A trained model leaves its run's folder, in the forms that `forms.py` lists.

Writing a form, and comparing its answers with the run's, belong here; reading one belongs to the room that uses it.
"""
