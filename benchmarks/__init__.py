"""What paceline is measured against: other libraries, and published formulations written plainly. Not part of the wheel.

`paceline bench` finds this folder beside the package where it runs from a checkout (paceline/tools/bench/__init__.py). A file here
has the peers of one measurement; peers/ has programs that run in other libraries' environments, where no paceline is.
"""
