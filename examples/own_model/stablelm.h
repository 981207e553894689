// StableLM (Stability AI, https://huggingface.co/docs/transformers/model_doc/stablelm): layer norms, SwiGLU, rotary
// positions for a part of each head, and optionally attention and feed-forward layers in parallel branches.
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
