// The configuration of a run: all sections of the one config file. The help texts in config.cpp describe each key.
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

/// The section [memory]: memory budgets in bytes, offloading and recomputation. 0 and "" mean that a budget is off.
struct MemoryConfig {
  std::string recompute = "none";
  int64_t device = 0;
  double states_on_device = 0;
  int64_t host = 0;
  std::string disk;
  std::string placement = "auto";
  void fields(Fields& f);
  /// Returns true if parameters, gradients and optimizer states are offloaded from the memory in which a step computes.
  bool has_tiers() const { return device > 0 || host > 0 || !disk.empty(); }
};

/// The section [training]: steps, batches, checkpoints, evaluation and samples.
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

/// A whole configuration, with the sections in the order of the file.
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
  /// Checks rules that involve several keys.
  /// Errors: a batch_size that is not divisible by data * accumulate * the ranks of a replica that split its rows (the
  ///         message names the nearest sizes that are); a tensor.size that its mode does not support; sizes that the
  ///         pipeline's schedule does not support; training.graph if passes cannot be recorded; memory.device if
  ///         parameters stay whole; values that are not UTF-8.
  void validate() const;
  /// Returns the number of micro-batches into which each replica's share of a batch is split: training.accumulate, or
  /// the pipeline's micro-batches. Errors: as validate().
  int64_t micro_batches() const;
};

/// A config as the user gave it.
struct GivenConfig {
  Config config;
  std::vector<std::string> notices{};  ///< one line for each value that was changed because it did not fit
};

/// Reads the config from a file ("" = none) and the flags, which override it. The result is not validated.
///
/// If the warm-up is longer than the run, it is shortened to a tenth of the run, with a notice. This applies if a flag
/// made the run shorter (the file says optimizer.warmup_steps = 20, a flag --training.steps=10), or if the user set no
/// warm-up. A warm-up set together with fewer steps is kept, so that validate() refuses it.
/// Errors: the errors of ConfigDocument.
GivenConfig read_given_config(const std::string& path, const std::vector<std::string>& flags);

}  // namespace colossal::run
