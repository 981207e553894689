// Where trained adapters are: a folder of peft (checkpoint/peft/folder.h), a file of adapters for a pipeline of
// pictures (checkpoint/peft/pipeline_file.h) or a run with the table [adapter].
//
//   const auto source = run::open_adapters("adapters/poet");
//   run::keys_of(source, shape).rank;       // the key `rank` of [adapter] that describes them
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/checkpoint/peft/folder.h"
#include "colossal/models/shape.h"
#include "colossal/run/adapter_modules.h"
#include "colossal/run/config.h"
#include "colossal/run/low_rank_keys.h"

namespace colossal::run {

/// A folder of peft or a file that is open, or a checkpoint of a run.
struct AdapterSource {
  std::string path{};
  std::shared_ptr<const checkpoint::PeftFolder> peft{};  ///< null = it is a run
  std::string checkpoint{};                              ///< path of the newest checkpoint of a run
  LowRankKeys keys{};                                    ///< table [adapter] of a run, without `from`
  double scale = 1;                                      ///< AdapterChoice::scale
  bool uses_average = true;                              ///< of a run: as ModelSource::uses_average
  int64_t text_encoder = -1;                             ///< of a run: AdapterChoice::text_encoder
};

/// Opens a folder. It does not communicate.
/// Errors ("adapter"): no such folder, or neither form; a run without adapters. ("run"): a run without a complete
///        checkpoint. Errors of checkpoint::PeftFolder.
AdapterSource open_adapters(const std::string& folder);

/// Returns the checksum of the base on which the adapters of a run were trained (checksum_of_base()); "" = it is
/// unknown.
std::string base_checksum_of(const AdapterSource& source);

/// Returns the keys of [adapter] for the adapters of a source on a model of `shape`, without `from` and `base`. Those
/// of a run on a part of its model name the modules of that part. A folder of peft with experts has no dropout, because
/// here adapters of experts have none.
/// Errors ("adapter"): a module that the model does not have (the message has the nearest name).
LowRankKeys keys_of(const AdapterSource& source, const models::ModelShape& shape);

/// Returns true if the source has adapters of a text encoder, beside those of the model that draws. `encoder`: its
/// number in a pipeline, from 0; -1 = any.
bool has_text_adapters(const AdapterSource& source, int64_t encoder = -1);

/// Returns the adapters of one text encoder of a pipeline with several, under the names of a first one.
/// Requires: has_text_adapters(source, encoder).
AdapterSource text_adapters_of(AdapterSource source, int64_t encoder);

/// Returns the shape of the model that a run trained, if `shape` is a part of it: of a denoiser with its text encoder
/// within it (models/clip_text_within.h) both are. Otherwise it returns `shape`. Reads the stored config of
/// the run, whose model.from must exist. Errors: those of resolve_model().
models::ModelShape shape_in_training(const AdapterSource& source, const models::ModelShape& shape);

/// Returns the index in `modules`, those of `shape`, of the module that shape_in_training() calls `name`; none = it
/// belongs to another part. A text encoder is the one that `source` names.
std::optional<size_t> index_in_part(const AdapterSource& source, const std::string& name, const AdapterModules& modules,
                                    const models::ModelShape& shape);

/// Returns the shape that a base of `shape` has with the adapters. It differs if the head of the base is its embedding,
/// and the folder of peft has only one of both, or another value for each: the result has a head of its own. Adapters
/// of a reward model bring its head, which replaces that of a base that continues text.
models::ModelShape shape_with(const AdapterSource& source, models::ModelShape shape);

/// Returns `keys`, the table [adapter] of `config`, completed from the source that `from` names; dropout stays if the
/// config sets it. Errors ("adapter"): a key that the config sets and the source contradicts. Errors of
/// open_adapters() and keys_of().
LowRankKeys with_source(const Config& config, const LowRankKeys& keys, const models::ModelShape& shape);

/// Returns the modules of the model that a folder of peft has whole. One that the model lacks has its name in the
/// folder.
std::vector<std::string> trained_modules_of(const checkpoint::PeftFolder& folder, const models::ModelShape& shape);

/// An adapter of a folder of peft, of a module of the model.
struct FolderAdapter {
  size_t module;                ///< index in AdapterModules::linear()
  checkpoint::PeftLayer layer;  ///< a stack of experts has A [experts, r, in] and B [experts, out, r]
  double alpha;
};

/// Returns the adapters of a folder. Folders of transformers 4 have adapters of single matrices of experts; those of
/// one stack are joined. Its rank is then the sum of the ranks of the matrices of an expert, such as gate and up: A has
/// theirs one below the other, and B is block-diagonal.
/// Errors: as keys_of(); adapters of only some experts of a stack, or of several ranks.
std::vector<FolderAdapter> adapters_of(const checkpoint::PeftFolder& folder, const models::ModelShape& shape);

}  // namespace colossal::run
