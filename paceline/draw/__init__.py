"""Pictures for people: photos with boxes, masks, names and answers, mosaics, and the frame of an HTML page.

Whatever a report, a check page, a prediction or a preview shows of a photo is drawn here, with Pillow, so that a class has one
colour everywhere. What is chosen to be shown, and what is said of it, belongs to those rooms (report/, prepare/check/, predict/);
reading photos belongs to data/.
"""
