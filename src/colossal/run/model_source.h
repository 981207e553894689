// Where a model and its weights come from: a run folder, a folder of transformers or diffusers, a GGUF file, AlphaFold
// 2's weights in a file of OpenFold (.pt) or AlphaFold (.npz), or a preset.
//
//   const run::ModelSource source = run::find_source("runs/teacher", program, vocabulary);
//   source.shape;                                     // known before a weight is read
//   run::read_source(source, engine->parameters(), weights, mesh, "teacher");
#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/models/shape.h"
#include "colossal/nn/adapter.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/low_rank_keys.h"

namespace colossal::checkpoint {
struct StepFolders;
}

namespace colossal::run {

struct AdapterSource;
struct Program;

/// The facts that a source contains about its model.
struct ModelSource {
  std::string path{};  ///< a folder, a file, or the name of a preset
  models::ModelShape shape{};
  std::string tokenizer{};   ///< source of the tokenizer: "bytes", a folder, a file
  std::string checkpoint{};  ///< of a run folder: path of its newest checkpoint
  std::string model{};       ///< of a run folder: which of its models; empty = the main one
  bool is_preset = false;    ///< true = the weights are drawn at random
  at::ScalarType dtype = at::kFloat;
  /// True = `shape` has a head of outputs (models::with_outputs) that the source lacks. The head starts at 0
  bool has_new_head = false;
  /// Of the main model of a run: true = the run trained a head of values with it (models::with_values), which `shape`
  /// and readers leave out
  bool leaves_out_values = false;
  /// Of a run with training.ema: true = readers get the average of its weights; false = those of the last step
  bool uses_average = true;
  // The members below are of a run whose checkpoints leave parameters out.
  nn::Adapter adapter{};
  std::string from{};  ///< model.from, the source of their values; empty = their values are drawn
  uint64_t seed = 0;   ///< training.seed
  at::ScalarType drawn_as = at::kFloat;
  std::shared_ptr<const ModelSource> base{};  ///< what `from` is, if it is a run folder
  std::string files{};  ///< of the main model of a run: its folder, if that has the model's config.json; else empty
  /// Of the main model of a run with the table [adapter]: its keys. Its checkpoints have the adapters alone. If the
  /// keys have `from`, the source is `base` with the adapters of that folder beside its weights
  std::optional<LowRankKeys> low_rank{};
};

/// Finds a source and the shape of its model. `vocabulary`: that of a preset; 0 = its own. No communication, and no
/// weight is read.
/// Errors ("run"): a path of another kind that is no preset either; a run without a complete checkpoint, or whose base
///                 has moved. Errors of configs.
ModelSource find_source(const std::string& path, const Program& program, int64_t vocabulary = 0);

/// Returns the source of random weights of a preset. `vocabulary`: as for find_source(). Errors ("model"): an unknown
/// preset; the message names the nearest.
ModelSource source_of_preset(const std::string& name, const Program& program, int64_t vocabulary = 0);

/// Checks that a path that is no run folder is a folder of transformers or diffusers (also a pipeline, which stands for
/// its denoiser), a makers' single file or a part of one (checkpoint/ldm/file.h), a GGUF file, or a file with a name
/// like that of AlphaFold 2's weights (checkpoint::is_strided_file). Errors ("run"): it is not.
void check_is_model(const std::string& path);

/// Returns the source that a run folder is. `steps`: its checkpoints. `model`: the main model (empty), or another one
/// that the run trained. `base`: the base of a run with adapters, if it has moved; empty = model.from. Errors: as
/// find_source(); ("run") a model that the run does not have or did not train; a base of a run without adapters.
ModelSource source_of_run(const std::string& folder, const checkpoint::StepFolders& steps, const Program& program,
                          const std::string& model = "", const std::string& base = "");

/// Returns the path of the newest of `steps`, the checkpoints of a run folder. Errors ("run"): there is none that is
/// complete.
std::string newest_checkpoint(const std::string& folder, const checkpoint::StepFolders& steps);

/// Returns the base of a run with adapters: the source of the values that its checkpoints leave out.
ModelSource base_of(const ModelSource& run);

/// Key in the progress of checkpoints that have adapters alone: checksum_of_base().
inline constexpr char kBaseChecksum[] = "base";

/// Returns checksum_of() model.from = `from`. For a model of `shape` with its text encoders within it, that of each
/// encoder of the pipeline follows, behind a comma. Time and errors: those of checksum_of().
std::string checksum_of_base(const std::string& from, const models::ModelShape& shape, const Program& program);

/// Checks that a base, the model that draws or its text encoder, has the weights on which the adapters of a run were
/// trained (base_checksum_of()); a base that is unknown passes. Time: that of checksum_of(). Errors ("run"): it has
/// others.
void check_same_base(const AdapterSource& adapters, const ModelSource& base);

/// Checks that `from` is there, from which a run has the values that its checkpoints leave out. Errors ("run"): it is
/// not.
void check_base(const ModelSource& source);

/// Writes the values of a source into `tensors`, those of `model` in `parameters`, which the caller may have in part.
/// Values of a preset are left as they are, and so are those of an adapter that the source does not have
/// (nn::Parameter::is_added). `source.shape` is the shape of `model`. `may_lack`: patterns of parameters that keep
/// their values if the source lacks them or has them in another shape (checkpoint::ExternalNames::may_lack). Returns
/// the names of those parameters.
/// Collective among all ranks of `mesh`, which agree on the checkpoint of rank 0 and on errors.
/// A run with training.ema gives the average of its weights (ModelSource::uses_average).
/// A run with the table [adapter] gives a model the weights into which its adapters are merged, unless that is a
/// further model that has adapters itself.
/// Errors ("model"): a run whose checkpoint has parameters of another adapter, which `model` lacks. Errors of
///                   check_base(), checkpoint::import_weights() and checkpoint::load().
std::vector<std::string> read_source(const ModelSource& source, const nn::Parameters& parameters,
                                     std::vector<checkpoint::NamedTensor> tensors, comm::Mesh& mesh,
                                     const std::string& model, const std::vector<std::string>& may_lack = {});

/// Returns a checksum of what read_source() reads and of what the weights compute: of the weights and the config.json
/// of a folder, of a file; of the config.toml and the manifest of a run, which has the checksums of the blocks, and of
/// what the checkpoint leaves out. "" for a preset. Time: one read of the
/// files. Errors ("file"): a file that cannot be read.
std::string checksum_of(const ModelSource& source);

}  // namespace colossal::run
