"""Attribution: the step at which a divergence appears, and the proof of a culprit."""
