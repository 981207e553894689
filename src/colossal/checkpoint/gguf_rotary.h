// Rotary positions as GGUF files and as config.json say them.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "colossal/checkpoint/gguf_family.h"

namespace colossal::checkpoint {

/// Names of the tensors that have the factors of frequencies, which are no weights.
bool is_rope_factors(const std::string& tensor);

/// Adds rope_scaling to `config`, which has sizes already, and the share of a head that is turned.
/// Factors of a LLaMA are recognised as those of rope_type llama3 with the numbers of Meta's models, else they become
/// longrope's, which turns alike.
/// Errors: throws Error("gguf", ...): a scaling other than linear, yarn or by factors; a share of LLaMA's heads.
void read_gguf_rotary(const GgufFile& file, const GgufFamily& family, nlohmann::json& config);
/// The other way. Errors: throws Error("gguf", ...) of what no file can say (dynamic, attention factors of yarn).
void write_gguf_rotary(const nlohmann::json& config, const GgufFamily& family, GgufModel& model);

}  // namespace colossal::checkpoint
