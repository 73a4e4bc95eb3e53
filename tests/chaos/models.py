"""What the producers and the handlers write."""

from django.db import models


class Order(models.Model):
    """The business row of a job: committed in one transaction with it."""

    key = models.CharField(max_length=40, primary_key=True)

    def __str__(self) -> str:
        return self.key


class Effect(models.Model):
    """What an atomic handler did: nothing here forbids it to be done twice."""

    job_id = models.BigIntegerField()
    fence = models.BigIntegerField()

    def __str__(self) -> str:
        return f"job {self.job_id}, fence {self.fence}"
