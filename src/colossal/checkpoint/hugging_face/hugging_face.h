// Imports and exports weights of Hugging Face folders: config.json and model.safetensors, or several files and
// model.safetensors.index.json.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/part_beside.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/parameter.h"

namespace colossal::comm {
class Group;
}
namespace colossal::ops {
struct GroupCodes;
}

namespace colossal::checkpoint {

class WeightSource;

/// Maps a model's parameters to the tensors of a folder.
struct ExternalNames {
  std::vector<nn::ExternalName> names;
  /// Prefix that only some folders have ("transformer.", "model."). A name is looked up as given, then without the
  /// prefix, then with it.
  std::string prefix;
  /// Patterns of tensors that the folder may hold unused, with `*` for any characters: "*.attn.bias",
  /// "*.rotary_emb.inv_freq", "lm_head.weight".
  std::vector<std::string> ignored;
  /// Patterns of our parameters that keep their values if one of their tensors is missing or has another shape: e.g. a
  /// new head on trained layers.
  std::vector<std::string> may_lack{};
  /// Endings of names, each with the ending in folders of other versions: {"LayerNorm.weight", "LayerNorm.gamma"}.
  std::vector<std::pair<std::string, std::string>> old_endings{};
  /// Tensors that a folder may hold under several names: twice, and then both must be equal, or only as the copy.
  /// Example: if a model's head is its embedding, "lm_head.weight" is a copy of "model.embed_tokens.weight".
  std::vector<nn::ExternalCopy> copies{};
  /// Name of the model that the folder holds, if there are several (nn::Parameters::Options::model). Our names and
  /// patterns are relative to it.
  std::string model{};
  /// Further parts of a pipeline that have tensors of the model, beside that which the folder stands for
  std::vector<PartBeside> beside{};
  /// Begin of the names of written weight files, and whether `copies` are written, too: diffusers' classes need both
  std::string stem = "model";
  bool writes_copies = false;
};

/// Returns the name that the tensor `name` of `external` has in a folder: with or without the prefix, and with an
/// ending of other versions; none = the folder does not hold it.
std::optional<std::string> name_in(const WeightSource& files, const std::string& name, const ExternalNames& external);

/// Reads folder/config.json, of a pipeline that of its denoiser (model_folder()), or makes the config of a GGUF file
/// (config_of_gguf) or of AlphaFold 2's weights (folding_config). Drops a quantization_config that import_weights
/// supports, because it describes how weights are stored, not the model.
/// Errors: throws Error("hugging face", ...) if the file is missing or not a JSON object; Error("quantization", ...)
///         for a quantization_config that is not supported.
nlohmann::json read_config(const std::string& folder);

/// Returns true if `name` matches one of the patterns of ExternalNames, with `*` for any characters.
bool matches_one(const std::string& name, const std::vector<std::string>& patterns);

/// Returns the name of the first tensor of a folder or GGUF file that matches `pattern`, with `*` for any characters.
/// Errors: damaged files. Cost: reads the headers of the files.
std::optional<std::string> find_tensor(const std::string& folder, const std::string& pattern);

/// Fills the parameters of this rank from the folder, or from a GGUF file (GgufWeights), converted to each parameter's
/// dtype. Reads only the slices that this rank holds, with one tensor of the folder in memory at a time. Of a stack
/// (nn::ExternalName::stacked) it holds one entry at a time, and reads none of other ranks' entries. A parameter whose
/// form takes the codes of a folder (nn::FrozenFilling::Codes) gets these.
///
/// Communication: none.
/// Errors: throws Error("hugging face", table of name, wanted, found) before any parameter is changed if tensors are
///         missing, unexpected or of a wrong shape. Also throws if one of `copies` differs from its original, for
///         damaged files, and for an index that points outside the folder.
/// Cost: every rank reads whole copies that the folder holds, and their originals.
void import_weights(const std::string& folder, nn::Parameters& parameters, const ExternalNames& external);
/// Function that may take the quantized values of this rank's part of a parameter. It calls `read` if it wants them,
/// and gets none if the folder does not have them in one form. It returns true if the value is not needed then. A stack
/// is passed matrix by matrix, with the names "<stack>.<index>".
using ReadCodes = std::function<std::optional<ops::GroupCodes>()>;
using TakeCodes = std::function<bool(const std::string& parameter, const ReadCodes& read)>;
/// Function that may take this rank's part of a parameter as the tensors [rows, in] that hold its rows, one after the
/// other, in the dtypes of the folder. It calls `read` as TakeCodes does. The tensors may be views of the file, which
/// is open as long as they exist. It returns true if the value is not needed then. Stacks are passed as for TakeCodes.
struct ReadRows {
  std::function<std::optional<std::vector<at::Tensor>>()> read;
  std::optional<at::ScalarType> dtype;  ///< dtype of all of the tensors; none = they differ
  std::optional<std::vector<at::Tensor>> operator()() const { return read(); }
};
using TakeRows = std::function<bool(const std::string& parameter, const ReadRows& read)>;
/// Function that may postpone reading a parameter. `load` reads it as import_weights() would have done: it fills the
/// value, unless TakeCodes or TakeRows take it. The caller that returns true calls it once, while `parameters` and what
/// the other functions use exist. The files stay open until all of these functions are destroyed.
using TakeLater = std::function<bool(const std::string& parameter, const std::function<void()>& load)>;
/// Fills `values` in the same way. They have the names of the parameters, and are whole local tensors or parts of them,
/// of any dtype. Returns the names of the parameters that the folder lacks and may lack.
/// `take` (empty = off) is called before values are converted, if all tensors of a parameter are quantized in one form
/// and this rank's inputs are cut between groups. If it returns true, for a stack of each matrix, the value is left as
/// it is.
/// `take_values` (empty = off) is called after `take` for a matrix that did not go there, if this rank has whole rows
/// of it without padding and the folder does not hold its transpose. Then all tensors of the matrix are open at a time.
/// `take_later` (empty = off) is called before both, for a parameter whose tensors WeightSource::can_wait().
std::vector<std::string> import_weights(const std::string& folder, const nn::Parameters& parameters,
                                        const std::vector<NamedTensor>& values, const ExternalNames& external,
                                        const TakeCodes& take = {}, const TakeRows& take_values = {},
                                        const TakeLater& take_later = {});

/// Fills `values` in the same way from a source that is open. `folder`: its name in messages.
std::vector<std::string> import_weights(const WeightSource& files, const std::string& folder,
                                        const nn::Parameters& parameters, const std::vector<NamedTensor>& values,
                                        const ExternalNames& external, const TakeCodes& take = {},
                                        const TakeRows& take_values = {});

/// Writes whole parameters and config.json. Values are rounded once to `dtype` (none = their own dtype). Files have at
/// most `max_file_bytes` bytes but at least one tensor; several files get an index. File names are those of
/// transformers.
///
/// Communication: every rank of `world` (the ranks of parameters.coordinates() in mesh order) must call. Each primary
///                block is sent to rank 0, numel * sizeof(dtype) bytes in total.
/// Errors: throws the same Error on every rank if the folder cannot be written.
/// Cost: rank 0 holds one whole tensor of the folder at a time; of a stack, one tensor of one entry. If it consists of
///       rows of several parameters, rank 0 also holds one of these parts.
void export_weights(const std::string& folder, const nn::Parameters& parameters, const ExternalNames& external,
                    const nlohmann::json& config, comm::Group& world, int64_t max_file_bytes = int64_t{5} << 30,
                    std::optional<at::ScalarType> dtype = {});

/// The dtypes of the tensors of a folder, by the names of ExternalNames.
struct TensorDtypes {
  at::ScalarType others = at::kFloat;               ///< of all tensors that are not named
  std::map<std::string, at::ScalarType> by_name{};  ///< floating ones
};

/// Returns the dtypes that a folder has. Errors: as import_weights() for damaged files. Cost: reads headers.
TensorDtypes dtypes_in(const std::string& folder, const ExternalNames& external, at::ScalarType others);

/// Writes the same with a dtype for each tensor.
void export_weights(const std::string& folder, const nn::Parameters& parameters, const ExternalNames& external,
                    const nlohmann::json& config, comm::Group& world, int64_t max_file_bytes,
                    const TensorDtypes& dtypes);

}  // namespace colossal::checkpoint
