// Weights in codes as a folder in the layout of GPTQ, which transformers, vLLM and others open, and
// `colossal generate --from` reads back to the same codes.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "colossal/checkpoint/hugging_face.h"
#include "colossal/ops/group_codes.h"

namespace colossal::checkpoint {

/// Whether matrices, by names of our parameters, can be written in codes of so many bits.
/// Errors: throws Error("quantization", ...) for inputs or outputs that do not fill words.
void check_gptq(const nn::Parameters& parameters, const std::vector<std::string>& matrices, int64_t bits,
                const ExternalNames& external);

/// Writes config.json (`config` with quantization_config) and model.safetensors. Of a weight "x.weight" that has codes
/// the folder holds x.qweight, x.qzeros, x.scales and x.g_idx; all else is rounded to `dtype`.
///
/// `codes`, by names of our parameters ("blocks.0.attention.qkv.weight"): all of the same bits and group, all with
/// minima or all without. Where a tensor of the folder holds rows of several parameters, all of them or none have
/// codes. Readers other than ours expect codes of all linear layers of blocks, and of the head at most beside them.
///
/// Numbers: codes are written as they are. Scales are rounded to binary16: those of ops::round_to_codes lose nothing
///          from 2^-14 on, below they are at most 2^-25 off. Minima are whole multiples of scales, -zero * scale with
///          a zero of 0 to 15 (RoundingOptions::whole_zeros).
/// Layout:  without minima checkpoint_format is "gptq" and sym true, which every reader has; with them "gptq_v2".
/// Errors:  throws Error("quantization", ...): codes that differ in form, of no parameter, of another shape, of a
///          tensor that is no ".weight"; inputs or outputs that do not fill words (8 of 4 bits, 4 of 8), as
///          check_gptq() says; minima that are no such multiples; parameters that are not whole on this rank; a folder
///          that holds model.safetensors.index.json; what cannot be written.
/// Cost:    one tensor of the folder at a time in memory beside what is given.
void export_gptq(const std::string& folder, const nn::Parameters& parameters,
                 const std::map<std::string, ops::GroupCodes>& codes, const ExternalNames& external,
                 const nlohmann::json& config, at::ScalarType dtype = at::kHalf);

}  // namespace colossal::checkpoint
