// Converts the parameters of rotary positions between GGUF files and config.json.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "colossal/checkpoint/gguf/family.h"

namespace colossal::checkpoint {

/// Returns true for the names of tensors that hold factors of rotary frequencies, which are not weights.
bool is_rope_factors(const std::string& tensor);

/// Adds rope_scaling to `config`, which already has sizes, and the fraction of a head that is rotated. If the factors
/// of a LLaMA equal the llama3 factors of Meta's models, it uses rope_type llama3; otherwise longrope, which rotates
/// the same way.
/// Families without rotary positions (GPT-2, BLOOM) stay as they are.
/// Errors: throws Error("gguf", ...) for a scaling other than linear, yarn or by factors, and for a family other than
///         GPT-NeoX and Phi-3 that rotates only a fraction of a head.
void read_gguf_rotary(const formats::GgufFile& file, const GgufFamily& family, nlohmann::json& config);
/// Converts in the other direction. Errors: throws Error("gguf", ...) for values that a file cannot store: other
/// types (dynamic), attention factors and truncate = false of yarn, except that a DeepSeek's yarn must have an mscale
/// that equals mscale_all_dim. Except for Phi-3, also longrope with an attention
/// factor other than 1 or with different factors for long and short texts.
void write_gguf_rotary(const nlohmann::json& config, const GgufFamily& family, GgufModel& model);

}  // namespace colossal::checkpoint
