// The configuration of a run: all sections of the one config file. `colossal help config` prints the meaning, unit and
// default of each key.
//
//   const run::GivenConfig given = run::read_given_config("examples/quickstart.toml", {"--training.steps=30"});
//   given.config.validate();                                    // rules that involve several keys
//   write_file(folder.config(), to_toml(given.config));         // every key with its value; reads back equal
#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/fields.h"
#include "colossal/distributed/config.h"
#include "colossal/models/config.h"
#include "colossal/nn/fp8_config.h"
#include "colossal/optim/config.h"
#include "colossal/tensor/replica_rows.h"

namespace colossal::run {

/// The section [run]: run folder, device, transport and timeouts.
struct RunConfig {
  std::string folder = "runs/default";
  std::string device = "auto";
  std::string backend = "auto";
  std::string matmul = "auto";
  int64_t timeout = 300;
  int64_t stall_notice = 10;
  bool bind_cores = true;
  void fields(Fields& f);
};

/// The section [data]: training data, and how samples are made from it.
struct DataConfig {
  std::string path = "builtin";
  std::vector<std::string> text_columns = {"text"};
  int64_t max_line_bytes = int64_t{16} << 20;
  std::string on_error = "refuse";
  int64_t threads = 2;
  std::string tokenizer = "auto";
  int64_t sequence = 128;
  std::string documents = "separate";
  double held_out = 0.05;
  /// All other keys of the section. The objective of the run defines which exist (ObjectiveRow::data): choose_row()
  /// reads them and refuses others.
  ConfigDocument own{};
  void fields(Fields& f);
  /// Visits the fields that every objective may read: all except `own`.
  void common_fields(Fields& f);
};

/// The section [precision]: number formats, master weights and loss scaling.
struct PrecisionConfig {
  std::string mode = "fp32";
  bool masters = true;
  double loss_scale = 65536;
  int64_t loss_scale_growth = 2000;
  nn::Fp8Config fp8;
  void fields(Fields& f);
  /// Returns the dtype of parameters and activations.
  at::ScalarType dtype() const;
  /// Returns true if the optimizer updates fp32 master weights instead of the parameters (bf16, fp16, fp8).
  bool has_masters() const;
};

/// The section [memory]: memory budgets in bytes, offloading and recomputation. By default device and host are 0
/// and disk is "": nothing is offloaded. device = 0 is all device memory. host = 0 is what transfers need if there is a
/// disk, and all host memory if only device is set.
struct MemoryConfig {
  std::string recompute = "none";
  int64_t activations = 0;
  int64_t device = 0;
  double states_on_device = 0;
  int64_t host = 0;
  std::string disk;
  std::string placement = "auto";
  void fields(Fields& f);
  /// Returns true if a budget or a disk is set. Parameters, gradients and optimizer states that are not in use are then
  /// offloaded from the memory in which a step computes.
  bool has_tiers() const { return device > 0 || host > 0 || !disk.empty(); }
};

/// The section [training]: steps, batches, checkpoints, evaluation and samples.
struct TrainingConfig {
  int64_t steps = 100;
  int64_t batch_size = 16;
  int64_t accumulate = 1;
  double clip = 1.0;
  std::string clip_by = "norm";
  std::string parameters = "all";
  double ema = 0;
  bool cuda_graph = false;
  int64_t seed = 0;
  int64_t save_every = 0;
  int64_t keep_last = 2;
  int64_t evaluate_every = 0;
  int64_t evaluate_batches = 8;
  std::vector<std::string> tasks{};
  std::string tasks_data;
  std::string sample_prompt;
  int64_t sample_tokens = 200;
  int64_t sample_every = 0;
  void fields(Fields& f);
};

/// A whole configuration. to_toml() writes the sections in this order.
struct Config {
  RunConfig run;
  models::ModelConfig model;
  DataConfig data;
  distributed::ParallelConfig parallel;
  PrecisionConfig precision;
  MemoryConfig memory;
  optim::OptimizerConfig optimizer;
  TrainingConfig training;
  /// All other tables, such as the table of an objective. The program defines which exist (run/own_tables.h).
  ConfigDocument tables{};
  void fields(Fields& f);
  /// Visits the sections that every program has: all except `tables`.
  void common_fields(Fields& f);
  /// Returns the tokenizer that data.tokenizer selects, with `auto` resolved.
  std::string tokenizer() const;
  /// Checks rules that involve several keys; ConfigDocument::read() checked each key alone. Sizes of models and samples
  /// are checked where they are known (train/placed_model.h).
  /// Errors: a batch_size that is not divisible by data * expert.size * accumulate * the ranks of a replica that split
  ///         its rows (the message names the nearest sizes that are); a tensor.size that its mode does not support;
  ///         sizes that the pipeline's schedule does not support; expert.tensor = "split" in another mode than 1d; an
  ///         expert.node that does not divide the ranks with other experts;
  ///         training.cuda_graph if passes cannot be recorded; memory.device if parameters stay whole; a warm-up longer
  ///         than the run; parallel.auto beside a key that it chooses, or parallel.ranks that differ from the axes
  ///         (run/layout_keys.h); values that are not UTF-8; keys without effect (run/unused_keys.h); other keys that
  ///         exclude or need one another, in [data], [parallel], [precision], [memory] and [optimizer].
  void validate() const;
  /// Returns the number of micro-batches of a step, of each of which every replica has its rows: training.accumulate,
  /// or with a pipeline the micro-batches of its schedule. Errors, which validate() reports too: with a pipeline, an
  /// accumulate other than 1, or a pipeline.micro_batches that does not divide the samples of a replica.
  int64_t micro_batches() const;
  /// Returns the rows of the global batch that replica `replica` reads. Errors: as micro_batches().
  tensor::ReplicaRows replica_rows(int64_t replica) const;
};

/// The result of read_given_config(): the user's config, and what was changed in it.
struct GivenConfig {
  Config config;
  std::vector<std::string> notices{};  ///< a line per key under its previous name, and for a shortened warm-up
};

/// Reads the config from a file ("" = none) and the flags, which override it. The result is not validated.
///
/// A warm-up longer than the run is shortened to a tenth of the run, with a notice, in two cases. Either a flag made
/// the run shorter: the file has optimizer.warmup_steps = 20, a flag is --training.steps=10. Or neither the file nor a
/// flag sets the warm-up. In the other cases it is kept, and validate() refuses it: a flag sets the warm-up, or the
/// file does and no flag sets training.steps.
/// Errors: the errors of ConfigDocument.
GivenConfig read_given_config(const std::string& path, const std::vector<std::string>& flags);
/// Reads the config from a document and one with flags or other values that override it.
GivenConfig read_given_config(const ConfigDocument& file, const ConfigDocument& on_top);

}  // namespace colossal::run
