// Weights of Hugging Face folders, in and out: config.json and model.safetensors, or several files and
// model.safetensors.index.json.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/parameter.h"

namespace colossal::comm {
class Group;
}
namespace colossal::ops {
struct GroupCodes;
}

namespace colossal::checkpoint {

/// How a model's parameters are called in a folder.
struct ExternalNames {
  std::vector<nn::ExternalName> names;
  /// Some folders lack it, some have it ("transformer.", "model."): a name is looked up as given, without it, and with
  /// it.
  std::string prefix;
  /// Tensors that may be in the folder unused; `*` stands for any characters: "*.attn.bias", "*.rotary_emb.inv_freq",
  /// "lm_head.weight".
  std::vector<std::string> ignored;
  /// Parameters of ours, as such patterns, that keep their values where the folder lacks one of their tensors or has
  /// it in another shape: a new head on trained blocks.
  std::vector<std::string> may_lack{};
  /// Ends of names, and what older folders have in their place: {"LayerNorm.weight", "LayerNorm.gamma"}.
  std::vector<std::pair<std::string, std::string>> old_endings{};
  /// Tensors that a folder may hold twice, which are compared: of a model whose head is its embedding "lm_head.weight",
  /// a copy of "model.embed_tokens.weight".
  std::vector<nn::ExternalCopy> copies{};
  /// The model that the folder holds, where there are several (nn::Parameters::Options::model). Our names and patterns
  /// are those within it.
  std::string model{};
};

/// folder/config.json, or what that would be of a GGUF file (config_of_gguf). A quantization_config that import_weights
/// understands is left out: it says how weights are stored, not what the model is.
/// Errors: throws Error("hugging face", ...) when missing or not a JSON object; Error("quantization", ...) of a
///         quantization_config that is not understood.
nlohmann::json read_config(const std::string& folder);

/// Fills the parameters of this rank from the folder, or from a GGUF file (GgufWeights), converted to each parameter's
/// dtype. Only the slices that this rank holds are read, one tensor of the folder at a time in memory.
///
/// Communication: none.
/// Errors: throws Error("hugging face", table of name, wanted, found) before any parameter is changed when tensors
///         are missing, unexpected or of a wrong shape; when one of `copies` differs from what it is a copy of; and on
///         damaged files, or an index that points outside the folder.
/// Cost: every rank reads copies that the folder holds, and what they are copies of, whole.
void import_weights(const std::string& folder, nn::Parameters& parameters, const ExternalNames& external);
/// Fills `values` in the same way. They are named as the parameters are: whole local tensors or parts of them, of any
/// dtype. Returns the parameters that the folder lacks and may lack.
/// If all tensors of a parameter are quantized in one form, and inputs are cut between groups, `take` is called before
/// they are converted. It gets the quantized values of this rank's part of the parameter. If it returns true, the value
/// is left as it is.
using TakeCodes = std::function<bool(const std::string& parameter, const ops::GroupCodes& codes)>;
std::vector<std::string> import_weights(const std::string& folder, const nn::Parameters& parameters,
                                        const std::vector<NamedTensor>& values, const ExternalNames& external,
                                        const TakeCodes& take = {});

/// Writes the parameters, whole and in `dtype` (none: their own), rounded once, with config.json; in files of at most
/// `max_file_bytes` (one tensor at least), with an index when there are several. The file names are those that
/// transformers writes.
///
/// Communication: every rank of `world` (the ranks of parameters.place() in mesh order) must call: each primary block
///                is sent to rank 0, numel * sizeof(dtype) bytes in all.
/// Errors: throws the same Error on every rank when the folder cannot be written.
/// Cost: rank 0 holds one whole tensor of the folder at a time, and one of its parts beside it where it is made of rows
///       of several.
void export_weights(const std::string& folder, const nn::Parameters& parameters, const ExternalNames& external,
                    const nlohmann::json& config, comm::Group& world, int64_t max_file_bytes = int64_t{5} << 30,
                    std::optional<at::ScalarType> dtype = {});

}  // namespace colossal::checkpoint
