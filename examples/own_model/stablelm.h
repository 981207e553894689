// StableLM (Stability AI, https://huggingface.co/docs/transformers/model_doc/stablelm): layer norms, SwiGLU, positions
// that turn a part of each head, and blocks whose attention and feed-forward layer may stand side by side.
#pragma once
#include <colossal.h>

/// The keys that this architecture adds to [model].
struct StableLmSizes {
  bool parallel = true;
  double rotary = 0.25;
  double rope_theta = 10000;
  void fields(colossal::Fields& f);
  bool operator==(const StableLmSizes&) const = default;
};

colossal::models::Architecture stablelm_architecture();
