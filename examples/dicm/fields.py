"""What both models of the DICM example read of a user and of an ad: the DICM of dicm.py, and the towers of towers.py."""

from palette import DATA

import ctrbox as cb
from ctrbox import col

users = cb.View(f"{DATA}/users", key="user_id").fill(segment=-1, interests="")
ads = cb.View(f"{DATA}/ads", key="ad_id").fill(category="none", advertiser_id=0)

USER = {"user": col("user_id"), "segment": col("segment"), "interests": col("interests").split("|")}
AD = {"ad": col("ad_id"), "category": col("category"), "advertiser": col("advertiser_id")}
