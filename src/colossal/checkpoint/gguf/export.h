// Exports the weights of a model as a GGUF file, which llama.cpp runs.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/formats/gguf_file.h"

namespace colossal::checkpoint {

/// Returns the names of the types that matrices can be written in: f32, f16, bf16, q8_0, q4_0, q4_k, q6_k.
const std::vector<std::string>& gguf_type_names();

/// Returns a sentence for the user if a file of a model with this config.json leaves out weights: its multi-token
/// layers. None = the file has all weights.
std::optional<std::string> notice_of_gguf(const nlohmann::json& config);

/// Writes the parameters with the values of `config` (the config.json of the model's folder) and `tokenizer` (values
/// "tokenizer.*"). `type` is the type of matrices; one-dimensional tensors are F32. As in llama.cpp's files, the
/// embedding and the head of q4_0 and q4_k are Q6_K. A matrix whose rows are not whole blocks becomes Q8_0, or F16 if
/// they are not whole blocks of Q8_0 either. A position embedding is F16 or BF16 if `type` is, else F32. The router of
/// a mixture is F32, because rounding it changes choices. Each matrix of all experts of a layer is one stacked tensor.
/// Keys and values of a latent (DeepSeek) are two tensors. Multi-token layers are left out.
///
/// Communication: every rank of `world` (the ranks of parameters.coordinates() in mesh order) must call. Each primary
///                block is sent to rank 0, numel * sizeof(dtype) bytes in total; those of a latent's keys and values
///                twice.
/// Errors: throws the same Error on every rank: whatever gguf_of_config() refuses, values that are not finite if blocks
///         have a scale, a file that cannot be written.
/// Cost: rank 0 holds one whole tensor at a time, in fp32, and its blocks; of a stack, one expert.
void export_gguf(const std::string& path, const nn::Parameters& parameters, const ExternalNames& external,
                 const nlohmann::json& config, const formats::GgufValues& tokenizer, const std::string& type,
                 comm::Group& world);

}  // namespace colossal::checkpoint
