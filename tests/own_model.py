"""A model of the user's own for job files, whose plan has one dense column. A job imports ``os``, ``time`` and ``torch``.

The environment variable PAUSE is the seconds that each step waits, to make a training long enough to be interrupted.
"""

OWN_MODEL = """

class Mine(torch.nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.reads = cb.models.Reads(schema, dim=4, linear=True)
        self.top = torch.nn.Linear(self.reads.width + 1, 1)

    def forward(self, x):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        return x.linear.sum(1) + self.top(torch.cat([x.flat, x.dense], 1)).squeeze(1)


model = Mine(plan.schema)
"""
