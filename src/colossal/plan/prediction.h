// What a planner says about one step of a run in steady state: memory and calls of every role, and seconds.
//
//   const plan::Prediction prediction = predict::predict_step({config, shape}, cluster);   // predict/step.h
//   std::fputs(plan::to_text(prediction).c_str(), stdout);
//   write_file(folder + "/prediction.json", plan::to_json(prediction));    // parse_prediction() reads it
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/base/step_memory.h"
#include "colossal/plan/timeline.h"

namespace colossal::plan {

/// Calls of one rank of a role in one step, counted as comm::Traffic counts them.
struct PredictedCalls {
  std::string group, collective, phase;  ///< names of comm::Traffic: "data", "all_reduce", "backward"
  int64_t calls = 0;
  double bytes = 0;  ///< bytes that the rank sends

  void fields(Fields& f);
  bool operator==(const PredictedCalls&) const = default;
};

/// Work of one rank on one kind of link in one step.
struct PredictedLink {
  std::string link;  ///< "inside a node", "between nodes", "to the host" or "to the disk"
  int64_t calls = 0;
  double bytes = 0;

  void fields(Fields& f);
  bool operator==(const PredictedLink&) const = default;
};

/// Ranks that do the same work.
struct PredictedRole {
  std::string name;  ///< "all ranks", "stage 0", ...
  int64_t ranks = 0;
  int64_t first_rank = 0;
  int64_t peak_bytes = 0;      ///< the most bytes of all kinds but `host` together
  int64_t resident_bytes = 0;  ///< memory of the process, with LibTorch itself; on accelerators without device memory
  std::string fullest;      ///< the moment of the peak: "backward of micro-batch 3, after product [4096, 1024, 4096]"
  StepMemory::Kinds kinds;  ///< the most bytes of each kind at any moment
  int64_t panels = 0;       ///< packed weights that draw answers, part of `buffers`; 0 = none
  int64_t cache = 0;        ///< keys and values that draw answers, part of `buffers`; 0 = the step draws none
  std::string recompute;    ///< what memory.recompute = "auto" chooses; empty for its other values
  std::vector<PredictedCalls> calls;  ///< ordered by group, collective, phase
  std::vector<PredictedLink> links;
  StepParts seconds;

  void fields(Fields& f);
};

/// A change that makes a run fit.
struct Remedy {
  std::string table;  ///< TOML to paste
  int64_t peak_bytes = 0;
  double step_seconds = 0;
  std::string training{};  ///< how it changes what the run learns; empty = not at all, up to rounding

  void fields(Fields& f);
};

/// Memory of one kind in one place.
struct PredictedNeed {
  /// "frozen parameters", "parameters" (those that train), "gradients", "masters" (master weights), "states" (of the
  /// optimizer) or "average" (training.ema)
  std::string what;
  std::string place;  ///< "device", which is the host if ranks compute on a CPU; "host" or "host or disk": of tiers
  int64_t bytes = 0;

  void fields(Fields& f);
  bool operator==(const PredictedNeed&) const = default;
};

/// A model of the run, or memory in which the main model draws answers.
struct PredictedModel {
  std::string name;                    ///< empty = the main model, which comes first. See `held`
  int64_t parameters = 0;              ///< their number, with those of its adapter; 0 = it has none of its own
  int64_t trained = 0;                 ///< how many of them are trained; 0 = it is frozen
  int64_t bytes = 0;                   ///< parameters, gradients, masters and states, over all ranks
  std::vector<PredictedNeed> needs{};  ///< `bytes` by kind and place
  /// Empty = a model. Else `name` is "panels" (packed weights) or "cache" (keys and values), and this says when ranks
  /// have it: "drawing" (while answers are drawn) or "always" (in updates too)
  std::string held{};

  void fields(Fields& f);
  bool operator==(const PredictedModel&) const = default;
};

/// How unevenly the experts of a mixture may be loaded, and what that needs. A rank load is the number of assignments
/// that the busiest rank computes in a micro-batch, over the mean of the ranks that exchange tokens.
struct RankLoads {
  double worst = 1;        ///< the largest load that the config permits; 1 = all ranks always have the same load
  double fitting = 1;      ///< the largest load up to which the layout fits; 0 = it does not fit at even loads
  int64_t peak_bytes = 0;  ///< peak memory of the fullest role at the worst load

  void fields(Fields& f);
  bool operator==(const RankLoads&) const = default;
};

struct Prediction {
  double parameters = 0;   ///< elements of all parameters of the model; 0 = not known
  int64_t vocabulary = 0;  ///< token ids of the model; 0 = it reads no text
  int64_t ranks = 0;
  bool fits = true;   ///< at every load of the experts that the config permits
  std::string limit;  ///< why it does not fit, with the numbers; empty if it fits
  double step_seconds = 0;
  int64_t peak_bytes = 0;      ///< peak memory of the fullest role, at even loads of experts
  double mfu = 0;              ///< operations of the model / (step_seconds x ranks x peak); 0 = no peak is known
  std::string mfu_formula;     ///< which operations count, in words
  double flops_per_token = 0;  ///< models::costs_of of a sample / its tokens: causal pairs only, no recomputation
  StepParts seconds;           ///< of the busiest role; they add up to step_seconds
  std::vector<PredictedRole> roles;
  std::vector<Remedy> remedies;  ///< the fastest first; empty where the layout fits
  std::vector<std::string> assumptions;
  double goodput = 1;              ///< share of the time of a long run that makes progress between failures
  double checkpoint_seconds = 0;   ///< of one checkpoint; 0 = the profile has no disk
  double checkpoint_interval = 0;  ///< seconds of training between checkpoints that lose the least; 0 = as above
  RankLoads rank_load{};
  std::vector<PredictedModel> models{};  ///< empty = not known

  void fields(Fields& f);
};

/// Returns one JSON object with the members of docs/how-to/planning.md.
std::string to_json(const Prediction& prediction);
/// Reads to_json(). `name` stands for its file in messages. Errors ("plan"): the text is no such object.
Prediction parse_prediction(std::string_view text, const std::string& name);
/// Returns "8030261248 parameters, vocabulary 128256" of the planned model; empty if its parameters are not known. In a
/// run with frozen parameters or several models, each model has a line of its own, which says what it needs and where:
/// "teacher: 124439808 parameters, frozen, 474.7 MiB over all ranks: frozen parameters 474.7 MiB (device)".
std::string model_line(const Prediction& prediction);
/// Formats needs by place: "parameters 3.1 MiB, gradients 3.1 MiB (device), states 6.2 MiB (host)". Neighbours in one
/// place are listed together.
std::string to_text(const std::vector<PredictedNeed>& needs);
/// Returns the tables that `colossal plan CONFIG` prints, below model_line().
std::string to_text(const Prediction& prediction);

}  // namespace colossal::plan
