// The one configuration file: every section of it.
//
//   const run::GivenConfig given = run::read_given_config("examples/quickstart.toml", {"--training.steps=30"});
//   given.config.validate();                                    // what no single key can say
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

namespace colossal::run {

/// [run]
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

/// [data]
struct DataConfig {
  std::string path = "builtin";
  std::vector<std::string> sources;
  std::vector<double> weights;
  std::vector<std::string> text_columns = {"text"};
  std::string label_column = "label";
  std::string target_column = "target";
  int64_t shuffle_bytes = int64_t{64} << 20;
  int64_t longest_line = int64_t{16} << 20;
  std::string faults = "refuse";
  int64_t threads = 2;
  std::string tokenizer = "auto";
  int64_t sequence = 128;
  std::string documents = "separate";
  double held_out = 0.05;
  double masked = 0.15, masked_random = 0.1, masked_kept = 0.1;
  double noise_density = 0, mean_span = 3;
  bool augment = true;
  std::vector<double> image_mean = {0.485, 0.456, 0.406}, image_deviation = {0.229, 0.224, 0.225};
  double least_area = 0.08;
  void fields(Fields& f);
};

/// [precision]
struct PrecisionConfig {
  std::string mode = "fp32";
  bool masters = true;
  double loss_scale = 65536;
  int64_t loss_scale_growth = 2000;
  nn::Fp8Config fp8;
  void fields(Fields& f);
  /// Returns the dtype of parameters and activations.
  at::ScalarType dtype() const;
  /// Whether the optimizer updates fp32 copies of parameters that have less.
  bool has_masters() const;
};

/// [memory]
struct MemoryConfig {
  std::string recompute = "none";
  int64_t device = 0;
  double states_on_device = 0;
  int64_t host = 0;
  std::string disk;
  std::string placement = "auto";
  void fields(Fields& f);
  /// Whether parameters, gradients and states leave the memory that a step computes in.
  bool has_tiers() const { return device > 0 || host > 0 || !disk.empty(); }
};

/// [training]
struct TrainingConfig {
  int64_t steps = 100;
  int64_t batch_size = 16;
  int64_t accumulate = 1;
  double clip = 1.0;
  std::string clip_by = "norm";
  bool graph = false;
  int64_t seed = 0;
  int64_t save_every = 0;
  int64_t keep_last = 2;
  int64_t evaluate_every = 0;
  int64_t evaluate_batches = 8;
  std::string sample_prompt;
  int64_t sample_tokens = 200;
  int64_t sample_every = 0;
  void fields(Fields& f);
};

struct Config {
  RunConfig run;
  models::ModelConfig model;
  DataConfig data;
  distributed::ParallelConfig parallel;
  PrecisionConfig precision;
  MemoryConfig memory;
  optim::OptimizerConfig optimizer;
  TrainingConfig training;
  /// All other tables, such as that of an objective. A program knows which there are (run/own_tables.h).
  ConfigDocument tables{};
  void fields(Fields& f);
  /// Visits the sections that every program has: all but `tables`.
  void common_fields(Fields& f);
  /// What data.tokenizer names, `auto` resolved.
  std::string tokenizer() const;
  /// What no single key can say. Errors: batch_size that does not divide by data * accumulate * the ranks of a replica
  /// that deal out its rows, with the nearest sizes that do; a tensor.size that its mode cannot be made of; sizes that
  /// the pipeline's schedule cannot do; training.graph where passes cannot be recorded; memory.device where parameters
  /// stay whole.
  void validate() const;
  /// Parts that each replica's share of a batch is cut in: training.accumulate, or those of the pipeline. Errors: those
  /// of validate().
  int64_t micro_batches() const;
};

struct GivenConfig {
  Config config;
  std::vector<std::string> notices{};  ///< what was made of the words that do not fit, a line each
};

/// The config that a file (none: "") and the flags laid over it give, not validated.
///
/// A warm-up that does not fit into a run which a flag made shorter, or which nobody asked for, becomes a tenth of the
/// run, with a notice: where the file says optimizer.warmup_steps = 20 and a flag --training.steps=10, or nothing says
/// how long it is. One that is asked for together with fewer steps stays, for validate() to refuse.
/// Errors: those of ConfigDocument.
GivenConfig read_given_config(const std::string& path, const std::vector<std::string>& flags);

}  // namespace colossal::run
