"""The store of our broker in parts, from below: clients, base, scanning, looking, settling, claims, survey, marks."""
