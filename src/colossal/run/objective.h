// The objective of a run: its samples, the check of a batch, the loss, and the metrics of an evaluation.
//
//   class Squares : public run::Objective {                                 // for a model that ends in nn::Outputs
//     run::OpenedData open(const run::DataRequest& request) const override { return {.training = table_of(request)}; }
//     tensor::Batch example(int64_t rows) const override { return table_batch(rows); }
//     void check(const tensor::Batch& batch) const override { batch.at("targets"); }
//     double weight(const tensor::Batch& batch) const override { return static_cast<double>(batch.rows()); }
//     at::Tensor loss(const models::Model&, const models::States& end, const nn::ForwardContext& step) const override {
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
//   run::Objectives objectives = run::built_in_objectives();                // in a program: Program::objectives
//   objectives.add({.name = "squares",
//                   .tables = {{"squares", SquaresKeys{}}},
//                   .make = [](const run::Config&, const run::OwnTables&, const models::ModelShape&) {
//                     return std::make_unique<Squares>();
//                   }});
//
// Whole programs: examples/own_objective, with samples and metrics; examples/own_teacher, with a second model and a
// step rule. A config with the first table of an objective selects it; otherwise the architecture names the objective
// (models::Task).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/metric.h"
#include "colossal/base/own_keys.h"
#include "colossal/comm/launch/device.h"
#include "colossal/comm/world.h"
#include "colossal/data/batches.h"
#include "colossal/models/model.h"
#include "colossal/models/registry.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/weight_packing.h"
#include "colossal/run/config.h"
#include "colossal/run/data_keys.h"
#include "colossal/run/further_model.h"
#include "colossal/run/own_tables.h"
#include "colossal/run/sample.h"
#include "colossal/tensor/batch.h"
#include "colossal/text/tokenizer.h"

namespace colossal::train {
class Engine;
class StepRule;
class Trainer;
struct MemoryNeed;
}  // namespace colossal::train

namespace colossal::run {

/// Inputs from which an objective opens its samples.
struct DataRequest {
  const Config& config;
  const models::ModelShape& shape;
  std::shared_ptr<const text::Tokenizer> tokenizer{};  ///< Objective::tokenizer(); null = none
  std::string builtin{};                               ///< path of the text of data.path = "builtin": see open_data()
  int replica = 0;                                     ///< index of the replica that reads (Config::replica_rows)
};

/// The samples of a run.
struct OpenedData {
  std::shared_ptr<const data::Samples> training{}, held_out{};  ///< held_out: null = the run does not evaluate
  std::vector<std::string> class_names{};                       ///< names of the classes in the data; empty = none
  std::unique_ptr<data::BatchReader> stream{};                  ///< records read in place of `training`; null = none
  std::vector<std::string> notices{};                           ///< lines for the user about data that were not read
  std::vector<std::string> facts{};  ///< lines about data that were read, such as counts, which need no attention
  int threads = 1;                   ///< number of threads that fill the rows of a batch
  bool is_builtin = false;           ///< true: the texts are DataRequest::builtin
  /// Tokens that end an answer in the data, at which generation must stop. They join those of the model
  std::vector<int64_t> end_ids{};
  /// Source of the chat template with which the data were rendered; empty = the model's, if it has one
  std::string chat_template{};
  /// Returns the ids that a user's prompt has in the data, up to where the answer begins; null = the data have no
  /// prompts, and a text continues text::Tokenizer::encode_prompt()
  std::function<std::vector<int64_t>(const std::string& prompt)> encode_prompt{};
};

/// Returns true if a run of this config evaluates, so that held-out samples are needed.
bool evaluates(const Config& config);

/// An objective of one run, made from its config and the shape of its model. All ranks make the same one.
/// Thread safety: const members may be called from several threads.
class Objective {
 public:
  /// The token ids that the objective uses.
  struct Ids {
    int64_t count = 0;  ///< all ids are below it
    /// Ids that the objective needs in addition to the tokenizer's, for messages: "the mask token"; empty = none
    std::string beside{};
  };

  virtual ~Objective() = default;

  /// Opens the tokenizer of the samples; null = they have no texts. Default: that of [data], if the main model reads
  /// text. An objective whose samples have texts for another model returns the tokenizer of that model. Errors: those
  /// of text::make_tokenizer().
  virtual std::unique_ptr<text::Tokenizer> tokenizer(const Config& config, const models::ModelShape& shape) const;
  /// Opens the samples. Errors: data that is missing, damaged, too short, or not what the model reads.
  virtual OpenedData open(const DataRequest& request) const = 0;
  /// Returns the token ids for a model of text. A config without model.vocabulary uses their count.
  virtual Ids ids(const text::Tokenizer& tokenizer) const;

  /// Returns a batch of `rows` samples on meta, with all fields that the model and the loss read. Its sizes determine
  /// costs, pipeline cuts and memory needs. Fields that no layer reads, such as labels, may be left out only if loss()
  /// runs without them.
  virtual tensor::Batch example(int64_t rows) const = 0;
  /// Returns the names of the fields of example() that the step rule adds to batches, so that samples lack them
  /// (train::StepRule::with_fields).
  virtual std::vector<std::string> added_fields() const { return {}; }
  /// Returns a part that loss() uses and the model lacks, such as "a head"; empty = none. A model that lacks a part can
  /// train only with losses of the caller (train::Engine::Loss).
  virtual std::string missing_from(const models::Model& model) const;
  /// Errors ("objective"): a model that lacks a part (missing_from()). Runs on every rank, before any communication.
  void check_model(const models::Model& model) const;
  /// Checks a batch on every rank, before any communication. Errors ("data"): fields or values that do not fit.
  virtual void check(const tensor::Batch& batch) const = 0;
  /// Returns the tokens of a batch, for the metrics tokens_per_second and mfu. Default: those of its rows; a batch
  /// without tokens counts the positions of a sample in a model of that shape, such as the patches and the class token
  /// of an image.
  virtual int64_t tokens(const tensor::Batch& batch, const models::ModelShape& shape) const;
  /// Returns the weight of a batch, such as the number of its labels that count. The engine divides loss and gradients
  /// by the sum over the ranks that have other rows. It does not wait for a device if the batch is on the host.
  virtual double weight(const tensor::Batch& batch) const = 0;

  /// Returns the loss of the micro-batch step.batch, summed over its samples, as a scalar. `end` holds the hidden
  /// states after the final norm; end[0] is the result of models::Model::norm. It runs on the ranks of the last stage,
  /// which all return the same value.
  virtual at::Tensor loss(const models::Model& model, const models::States& end,
                          const nn::ForwardContext& step) const = 0;
  /// Returns k, the number of sums that evaluate() returns. It is called on the ranks of all stages.
  virtual int64_t sums() const { return 1; }
  /// Returns the sums [k] of an evaluation of step.batch, without gradients. Default: the loss.
  virtual at::Tensor evaluate(const models::Model& model, const models::States& end,
                              const nn::ForwardContext& step) const;
  /// Returns the metrics of an evaluation, from the sums and weight over all batches and ranks. Default: eval_loss, the
  /// first sum divided by the weight.
  virtual std::vector<Metric> metrics(const std::vector<double>& sums, double weight) const;
  /// Returns true if the loss of a micro-batch is not the sum of losses of its samples, for instance if it compares
  /// them with one another. The number of micro-batches then belongs to what a run learns, and a search for layouts
  /// keeps it.
  virtual bool compares_samples() const { return false; }
  /// Returns the most tokens that one text of a row has, so that a model needs as many positions. Default: the tokens
  /// of a row of example().
  virtual int64_t text_tokens() const { return example(1).tokens(); }
  /// Returns how the run packs the weights of its main model, for generation and for canonical passes
  /// (train::NamedModel::panels); none = it does not.
  virtual std::optional<nn::WeightPacking> panels() const { return std::nullopt; }
  /// Returns false if models must train without dropout: the model of the run has none, and model.dropout above 0 is
  /// refused.
  virtual bool has_dropout() const { return true; }
  /// Returns the number of outputs per token of the head that the run gives its model in place of the one that scores
  /// tokens (models::with_outputs); 0 = the model's own head. It does not depend on the shape.
  virtual int64_t outputs() const { return 0; }
  /// Returns true if the run gives its model a second head, of one value per token (models::with_values). It does not
  /// depend on the shape.
  virtual bool values() const { return false; }
  /// Returns the shape of the model that the run trains. `shape` is that of [model], with the heads of outputs() and
  /// values(). An objective whose model has a part of another one within it returns the shape with that part.
  virtual models::ModelShape with_parts(models::ModelShape shape) const { return shape; }
  /// Returns true if samples may have other sizes than those of example(), so that what a batch costs follows from its
  /// own. The metric mfu then counts the costs of each size.
  virtual bool varies_in_size() const { return false; }
  /// Returns an example whose fields of samples got other sizes, with those of added_fields() in sizes that fit. It is
  /// on meta. Default: their sizes are the same.
  virtual tensor::Batch with_added(tensor::Batch example) const { return example; }
};

/// Returns sum / weight. If the weight is not positive it returns the sum, because a batch without labels has no loss.
double mean_of(double sum, double weight);

/// How a run begins, for ObjectiveRow::prepare.
struct Preparation {
  bool resumes = false;  ///< true = the run continues from its folder, if that has a checkpoint
  const comm::Devices* devices = &comm::cuda_devices();  ///< devices for [run] device (comm::choose_device)
};

/// A kind of objective: everything that distinguishes its runs. Required: name, make.
struct ObjectiveRow {
  std::string name{};  ///< "next-token"
  /// Its tables of the config, with the defaults of their keys. The first one selects the objective and belongs to it
  /// alone. The others may belong to several objectives, such as the table of a further model (ModelKeys)
  std::vector<OwnTable> tables{};
  /// The keys of [data] that it has besides those of every run, with their defaults (run/data_keys.h)
  OwnKeys data{};
  /// Makes the objective of a run. Every command that reads a run's config calls it, even before the vocabulary of the
  /// shape is known. Data must be read in open(), because data read here would be needed by all of these commands.
  /// Lifetime: the objective may outlive config, tables and shape, so it copies what it needs of them.
  /// Errors ("objective"): a shape whose head the objective cannot use.
  std::function<std::unique_ptr<Objective>(const Config&, const OwnTables&, const models::ModelShape&)> make{};
  /// Sets keys of every run that follow from the tables, such as training.batch_size, before anything reads them. Must
  /// give the same again for a config that it has completed. `notices` gets lines for the user. Null = nothing
  std::function<void(Config&, const OwnTables&, std::vector<std::string>& notices)> complete{};
  /// Makes data that open() reads, such as latents of pictures, before the data are opened and the models of the run
  /// exist. Called on every rank, collectively; the ranks must throw alike. Null = nothing.
  std::function<void(comm::World&, const Config&, const OwnTables&, const Preparation&)> prepare{};
  /// Names the further models of a run with that main model; null = none.
  std::function<std::vector<FurtherModel>(const Config&, const OwnTables&, const models::ModelShape&)> models{};
  /// Makes the rule for the steps of a run (train/step_rule.h); null = one batch and one update a step.
  std::function<std::unique_ptr<train::StepRule>(train::Engine&, const Config&, const OwnTables&)> step_rule{};
  /// Called on every rank at each evaluation, also without held-out data, with the rows of the evaluation so far. It
  /// may evaluate other batches and add rows. The rows must be the same on all ranks. Null = nothing.
  std::function<void(train::Engine&, std::vector<Metric>&)> evaluated{};
  /// Makes the samples of a run, every training.sample_every steps and at its end, on every rank; rank 0 keeps them.
  /// Null = a text, if the model generates some (cli/train.cpp).
  std::function<std::vector<Sample>(train::Trainer&, const ShowText&)> samples{};
  /// Returns what samples take in memory beside the run, from shapes; null = nothing of their own. Each rank calls it
  /// on its own, so it must not throw
  std::function<std::vector<train::MemoryNeed>(train::Trainer&)> sample_needs{};

  /// Returns the name of the table that selects the objective; empty = none.
  std::string table() const { return tables.empty() ? "" : tables.front().name; }
  /// Returns its tables and keys of [data].
  OwnTables values() const { return OwnTables(tables, data); }
};

/// The set of objectives of a program.
class Objectives {
 public:
  /// Adds an objective and returns this set.
  /// Errors ("objective"): no name or make; a name that another objective has; a first table that another objective
  ///                       has; a table that appears twice, or is a section that every config has; a key of [data]
  ///                       that every run has.
  Objectives& add(ObjectiveRow row);
  const std::vector<ObjectiveRow>& rows() const { return rows_; }
  /// Returns the objective of that name. Errors ("objective"): unknown name; the message names the nearest.
  const ObjectiveRow& at(const std::string& name) const;
  ObjectiveRow& at(const std::string& name) { return const_cast<ObjectiveRow&>(std::as_const(*this).at(name)); }

 private:
  std::vector<ObjectiveRow> rows_;
};

/// Returns the objectives of the library (run/objectives).
Objectives built_in_objectives();

/// The objective of a run, and its tables to be saved in the run's config.
struct ChosenObjective {
  std::string name;
  std::shared_ptr<const Objective> objective;
  ConfigDocument tables;               ///< every key of the tables that the run uses
  ObjectiveRow row{};                  ///< with the values of its tables and keys of [data] in the run
  std::vector<FurtherModel> models{};  ///< of the run
  /// Writes `tables` and all keys of [data] that the objective has into the config, as a run saves it.
  void write_keys(Config& config) const;
};

/// Returns the keys of [data] of each objective.
std::vector<DataKeys> data_keys_of(const Objectives& objectives);

/// Returns the tables of all objectives that have one, with their defaults.
std::vector<OwnTable> tables_of(const Objectives& objectives);

/// Returns the row of the objective whose table the config has, or else of the one that the architecture names, with
/// the values of its tables and keys of [data] in the config. `others`: the program's tables that do not belong to
/// objectives. `notices` gets a line for each key of [data] under its previous name; null = none.
/// Errors ("config"): tables of two objectives; a table of other objectives alone; errors of read_tables() and
///                    read_data_keys().
/// Errors ("objective"): a name that no objective has.
ObjectiveRow choose_row(const Config& config, const Objectives& objectives, const models::ModelShape& shape,
                        const std::vector<OwnTable>& others = {}, std::vector<std::string>* notices = nullptr);

/// Completes the config by the row of the objective whose table it has (ObjectiveRow::complete). `others` and
/// `notices`: as choose_row(). Errors: those of read_tables() and of the function.
void complete_keys(Config& config, const Objectives& objectives, const std::vector<OwnTable>& others = {},
                   std::vector<std::string>* notices = nullptr);

/// Returns the shape with the heads that the objective needs (Objective::outputs, values).
models::ModelShape shape_for(const Objective& objective, models::ModelShape shape);

/// Makes the objective of choose_row(), and names its models. Errors: those of choose_row() and of ObjectiveRow::make
/// and models.
ChosenObjective choose_objective(const Config& config, const Objectives& objectives, const models::ModelShape& shape,
                                 const std::vector<OwnTable>& others = {}, std::vector<std::string>* notices = nullptr);

/// Returns a batch of one replica on the host, for passes whose values do not matter: all elements of the
/// objective's example are 1. Unless documents are joined, each row of tokens has a document for each
/// Objective::text_tokens() of them.
tensor::Batch batch_of_ones(const Objective& objective, const Config& config);

/// Returns the costs of a training step on one sample, for each part of the model (models::costs_of).
models::Costs costs_of(const models::ModelShape& shape, const Objective& objective);
/// Returns the same for samples of the sizes that `batch` has in fields of the example.
models::Costs costs_of(const models::ModelShape& shape, const Objective& objective, const tensor::Batch& batch);

}  // namespace colossal::run
