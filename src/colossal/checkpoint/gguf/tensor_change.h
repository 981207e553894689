// Changes of tensors between GGUF files and Hugging Face folders.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::checkpoint {

/// How a tensor of a folder differs from the same tensor in a file.
enum class GgufChange {
  None,
  Transposed,    ///< matrices are [in, out] in the folder (GPT-2's Conv1D)
  QueryPairs,    ///< rotary pairs of a head are (i, i + half) in the folder, adjacent in the file (LLaMA)
  KeyPairs,      ///< like QueryPairs, with the number of key heads
  OneMore,       ///< the file has the folder's values + 1 (Gemma's norms)
  Groups,        ///< the folder interleaves q, k and v by head group; the file has all q, all k, all v
  LatentKeys,    ///< the file has the keys of the folder's tensor alone (latent_keys(), DeepSeek)
  LatentValues,  ///< like LatentKeys, with the values
};

/// Numbers and sizes of attention heads, which conversions need.
struct GgufHeads {
  int64_t heads = 0, kv_heads = 0;
  /// Latent attention: features of a head's keys that are not rotated and that are, and of its values
  int64_t nope = 0, rotated = 0, value = 0;
};
/// Convert a tensor to the other format. to_folder() does not convert keys and values of a latent, which
/// latent_joined() joins. Errors: throws Error("gguf", ...) if the number of rows does not fit the heads.
at::Tensor to_folder(const at::Tensor& tensor, GgufChange change, const GgufHeads& heads);
at::Tensor to_gguf(const at::Tensor& tensor, GgufChange change, const GgufHeads& heads);

}  // namespace colossal::checkpoint
