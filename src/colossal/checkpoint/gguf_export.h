// Weights of a model as a GGUF file, which llama.cpp runs.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/base/gguf_file.h"
#include "colossal/checkpoint/hugging_face.h"

namespace colossal::checkpoint {

/// Names of the types that matrices can be written in: f32, f16, bf16, q8_0, q4_0, q4_k, q6_k.
const std::vector<std::string>& gguf_type_names();

/// Writes the parameters with what `config` (of the folder that they would be) and `tokenizer` (values "tokenizer.*")
/// say. `type`: of matrices; lists of numbers are F32. As llama.cpp's files have it, the embedding and the head of
/// q4_0 and q4_k are Q6_K, and where rows are no whole blocks a matrix becomes Q8_0, or F16 where those do not fit.
///
/// Communication: every rank of `world` (the ranks of parameters.place() in mesh order) must call: each primary block
///                is sent to rank 0, numel * sizeof(dtype) bytes in all.
/// Errors: throws the same Error on every rank: what gguf_of_config() refuses, numbers that are not finite where blocks
///         have a scale, a file that cannot be written.
/// Cost: rank 0 holds one whole tensor at a time, in fp32, and its blocks.
void export_gguf(const std::string& path, const nn::Parameters& parameters, const ExternalNames& external,
                 const nlohmann::json& config, const GgufValues& tokenizer, const std::string& type,
                 comm::Group& world);

}  // namespace colossal::checkpoint
