// What a run trains a model for: its samples, the check of a batch, the loss, and the measurements of an evaluation.
//
//   class Squares : public run::Objective {                                 // of a model that ends in nn::Outputs
//     run::OpenedData open(const run::DataRequest& request) const override { return {.training = table_of(request)}; }
//     tensor::Batch example(int64_t rows) const override { return table_batch(rows); }
//     void check(const tensor::Batch& batch) const override { batch.at("targets"); }
//     double weight(const tensor::Batch& batch) const override { return static_cast<double>(batch.rows()); }
//     at::Tensor loss(const models::Model&, const models::States& end, const nn::Step& step) const override {
//       return (end[0] - step.batch->at("targets")).square().sum();
//     }
//   };
//
//   struct SquaresKeys {                                                    // the table [squares]
//     std::string target = "";
//     void fields(Fields& f) { f.text("target", target, "column that is predicted"); }
//     bool operator==(const SquaresKeys&) const = default;
//   };
//
//   run::Objectives objectives = run::built_in_objectives();                // a program's: Program::objectives
//   objectives.add({.name = "squares",
//                   .table = "squares",
//                   .keys = SquaresKeys{},
//                   .make = [](const run::Config&, const OwnKeys&, const models::ModelShape&) {
//                     return std::make_unique<Squares>();
//                   }});
//
// A whole program, with samples and metrics: examples/own_objective.
// A config that has the table of an objective selects it; otherwise the architecture names one (models::Task).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/base/metric.h"
#include "colossal/base/own_keys.h"
#include "colossal/data/batches.h"
#include "colossal/models/model.h"
#include "colossal/models/registry.h"
#include "colossal/run/config.h"
#include "colossal/run/own_tables.h"
#include "colossal/tensor/batch.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {

/// What an objective opens its samples for.
struct DataRequest {
  const Config& config;
  const models::ModelShape& shape;
  std::shared_ptr<const text::Tokenizer> tokenizer{};  ///< null if the model reads no text
  std::string builtin{};                               ///< the folder that data.path = "builtin" stands for
  int replica = 0;                                     ///< index of the data replica that reads
};

/// The samples of a run.
struct OpenedData {
  std::shared_ptr<const data::Samples> training{}, held_out{};  ///< no held_out: the run does not evaluate
  std::vector<std::string> class_names{};                       ///< names of the classes in the data, or none
  std::unique_ptr<data::BatchReader> stream{};                  ///< in place of `training`
  std::vector<std::string> notices{};                           ///< lines for people: what was left out
  int threads = 1;                                              ///< that fill the rows of a batch
};

/// Returns true if a run of this config evaluates, so that held-out samples are needed.
bool evaluates(const Config& config);

/// An objective of one run, made from its config and the shape of its model. All ranks make the same one.
/// Thread safety: const members may be called from several threads.
class Objective {
 public:
  /// The token ids that the objective needs.
  struct Ids {
    int64_t count = 0;     ///< ids are below it
    std::string beside{};  ///< what the objective needs in addition to the tokenizer's: "the mask token"; empty: none
  };

  virtual ~Objective() = default;

  /// Opens the samples. Errors: data that is missing, damaged, too short, or not what the model reads.
  virtual OpenedData open(const DataRequest& request) const = 0;
  /// The token ids of a model of text. A config without model.vocabulary takes their count.
  virtual Ids ids(const text::Tokenizer& tokenizer) const;

  /// A batch of `rows` samples on meta, with all fields that the model and the loss read. Costs, cuts of pipelines and
  /// memory needs follow from its sizes. Labels and other fields that no layer reads may be left out only if loss()
  /// runs without them.
  virtual tensor::Batch example(int64_t rows) const = 0;
  /// Returns what loss() uses and the model lacks, such as "a head"; empty: nothing. A model that lacks something
  /// trains only with losses of the caller (train::Engine::Loss).
  virtual std::string missing_from(const models::Model& model) const;
  /// Errors ("objective"): a model from which something is missing. Runs on every rank, before any communication.
  void check_model(const models::Model& model) const;
  /// Checks a batch on every rank, before any communication. Errors ("data"): fields or values that do not fit.
  virtual void check(const tensor::Batch& batch) const = 0;
  /// Returns the weight of a batch, such as the number of its labels that count. The engine divides loss and gradients
  /// by the sum over the ranks that have other rows. A batch on the host costs no wait for a device.
  virtual double weight(const tensor::Batch& batch) const = 0;

  /// The loss of step.batch, a micro-batch, as a scalar: the sum over its samples. `end` are the hidden states after
  /// the final norm; end[0] is what models::Model::norm returned. Runs on the ranks of the last stage, which all return
  /// the same value.
  virtual at::Tensor loss(const models::Model& model, const models::States& end, const nn::Step& step) const = 0;
  /// The number of sums that evaluate() returns, k. Ranks of other stages need it, too.
  virtual int64_t sums() const { return 1; }
  /// The sums [k] of an evaluation of step.batch, without gradients. By default the loss.
  virtual at::Tensor evaluate(const models::Model& model, const models::States& end, const nn::Step& step) const;
  /// The rows of an evaluation, from the sums and weight over all batches and ranks. By default eval_loss, the first
  /// sum divided by the weight.
  virtual std::vector<Metric> metrics(const std::vector<double>& sums, double weight) const;
};

/// Returns sum / weight, or the sum of a weight that is not positive: a batch without labels has no loss.
double mean_of(double sum, double weight);

/// A kind of objective. Required: name, make.
struct ObjectiveRow {
  std::string name{};   ///< "next-token"
  std::string table{};  ///< its own table of the config, such as "diffusion" ("": none)
  OwnKeys keys{};       ///< the keys of that table, with their defaults
  /// Makes the objective of a run. Every command that reads a run's config calls it, also before the shape has its
  /// vocabulary. An objective that reads data here, and not in open(), makes all of them need the data.
  /// Errors ("objective"): a shape whose head the objective cannot use.
  std::function<std::unique_ptr<Objective>(const Config&, const OwnKeys&, const models::ModelShape&)> make{};
};

/// The objectives that a program knows.
class Objectives {
 public:
  /// Errors ("objective"): no name or make; a name or table that another objective has; keys without a table; the table
  ///                       of a section that every config has.
  Objectives& add(ObjectiveRow row);
  const std::vector<ObjectiveRow>& rows() const { return rows_; }
  /// Errors ("objective"): unknown name, with the nearest.
  const ObjectiveRow& at(const std::string& name) const;

 private:
  std::vector<ObjectiveRow> rows_;
};

/// The objectives of the library (run/objectives).
Objectives built_in_objectives();

/// The objective of a run, and what the config is to keep.
struct ChosenObjective {
  std::string name;
  std::shared_ptr<const Objective> objective;
  ConfigDocument tables;  ///< every key of the tables that the run uses
};

/// The tables of all objectives that have one, with their defaults.
std::vector<OwnTable> tables_of(const Objectives& objectives);

/// Chooses the objective whose table the config has, or the one that the architecture names, and makes it. `others`:
/// the tables that the program has beside those of objectives.
/// Errors ("config"): tables of two objectives; those of read_tables(). Errors ("objective"): a name that no objective
///                    has; those of ObjectiveRow::make.
ChosenObjective choose_objective(const Config& config, const Objectives& objectives, const models::ModelShape& shape,
                                 const std::vector<OwnTable>& others = {});

/// A batch of one data replica on the host, for passes whose values do not matter: all numbers of the objective's
/// example are 1. Without joined documents each row of tokens is one document.
tensor::Batch batch_of_ones(const Objective& objective, const Config& config);

/// What the parts of a model cost in a training step on one sample (models::costs_of).
models::Costs costs_of(const models::ModelShape& shape, const Objective& objective);

}  // namespace colossal::run
