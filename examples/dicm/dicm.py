r"""Trains DICM ("Image Matters", CIKM 2018) from a folder of images and raw logs of events: its whole recipe.

    python make_data.py                                          raw data: images/*.jpg, impressions, clicks, users, ads
    ctrbox vectors encode data/images --encoder palette.py --ids int -o data/images.ctrvec
    ctrbox train dicm.py --out runs/first --adaptive-l2 0.0001 --decay 0.5:200
    ctrbox train dicm.py --out runs/second --from runs/first --warm-up partial --adaptive-l2 0.0001 --decay 0.5:200
    python dicm.py                                               the state of the users' histories, data/seen.past
    ctrbox publish create model --model runs/second --server ad_image=data/images.ctrvec \
        --context user_id,ts,device,seen,seen_age
    ctrbox train towers.py --out runs/towers
    ctrbox vectors prerank runs/towers ads -o data/ads.prerank   a vector for every ad
    ctrbox serve model --job dicm.py --state data/seen.past --prerank data/ads.prerank --prerank-run runs/towers

A request may then bring the image of an ad that is newer than the model: "objects": {"ad_image": {"77": {"image": BASE64}}}.
"""

from fields import AD, USER, ads, users
from palette import DATA, encoder

import ctrbox as cb
from ctrbox import col

# A user's behavior: the ads that were clicked in the last weeks and looked at for more than 15 seconds, newest last.
clicks = cb.View(f"{DATA}/clicks", name="clicks")
seen = clicks.history("ad_id", by="user_id", time="ts", where=col("dwell") >= 15.0, last=30, within="28d")
log = (
    cb.View(f"{DATA}/impressions", key="instance_id")
    .fill(device="none", position=-1)
    .with_history(seen=seen)
    .join(users, on="user_id")
    .join(ads, on="ad_id")
)

IMPRESSION = {"position": col("position"), "device": col("device"), "hour": col("ts").hour()}
IMAGES = {"ad_image": col("ad_id").key(space="image"), "behavior": col("seen").key(space="image")}

features = cb.FeatureSet(label=col("clicked"), group=col("user_id"), sparse=USER | AD | IMPRESSION | IMAGES)
plan = cb.compile(log, features, device="cpu")
model = cb.models.DICM(
    plan.schema, 12, ad_image="ad_image", behavior="behavior", query="category", hidden=(64, 32), activation="prelu"
)
images = cb.tables.ModelServer(
    DATA / "images.ctrvec", cb.tables.ImageEmbedding(64, (32,), 12), optimizer=cb.optim.Adam(lr=0.002)
)
table = {
    "ad_image": images,
    "behavior": images,
    "*": cb.MemoryTable(12, optimizer=cb.Adagrad(lr=0.05), counters=cb.tables.Counters()),
}
optimizer = cb.optim.Adam(lr=0.003)
settings = {"batch_size": 500}
common = ["behavior"]  # rows of one user share it: it is looked up and pooled once per user and batch
encoders = {"ad_image": encoder}  # for images in requests

if __name__ == "__main__":
    state = plan.histories()
    state.read_log()
    state.save(DATA / "seen.past")
