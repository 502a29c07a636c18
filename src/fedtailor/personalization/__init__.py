"""Models for one client: personalized, exported, used to predict."""
