// Values that layers report from inside a training step, and loss terms that they attach to hidden states.
//
//   struct Router {
//     Router(const std::string& name, int64_t experts, nn::Layers& make)   // on every rank, also for other stages
//         : load(make.reports().add({.name = name + ".load", .size = experts, .over = nn::Over::Sum})),
//           balance(make.reports().add_loss({.name = name + ".balance", .weight = 0.01})) {}
//     at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) {
//       step.report(load, tokens_of_each_expert(x));                       // [experts]
//       return step.attach_loss(balance, balance_loss(x), x);              // x; backward goes through the loss, too
//     }
//     nn::Report load, balance;
//   };
//
//   model.end_step = [=](const nn::Reported& reported, std::vector<Metric>& rows) {   // after the update, on all ranks
//     const std::vector<double>& loads = reported.at(load);
//     rows.push_back({.name = "largest_load", .value = *std::max_element(loads.begin(), loads.end())});
//   };
//
// A report is declared when its layer is made, so all ranks and stages know all reports and agree on one vector.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/tensor/mesh_coordinates.h"

namespace colossal::nn {

struct ForwardContext;

/// How the values of a step are joined: over its micro-batches and over the ranks that have other rows or tokens.
enum class Over : uint8_t {
  Sum,
  Mean,  ///< every micro-batch and every rank counts the same
  Max,
  /// The layer has already joined the value over the ranks, so that all of them report the same; the mean is taken over
  /// micro-batches. For a loss term, backward of the layer's collectives must give each rank the gradient of the rank's
  /// own part
  Same,
};

/// A reported value of `size` elements, e.g. the number of tokens of each expert.
struct ReportOptions {
  std::string name;  ///< dotted path, the same under every layout: "blocks.3.router.load"
  int64_t size = 1;
  Over over = Over::Sum;
};

/// A scalar that is added to the loss. Its name is also the name of its row in metrics.jsonl.
struct LossTermOptions {
  std::string name;
  double weight = 1;       ///< factor of its gradient; the reported value is not multiplied by it
  Over over = Over::Mean;  ///< Mean or Same
  bool has_row = true;     ///< false = no row of its own; Model::end_step may make one of it
};

/// Handle to a declared report. A default-constructed one was not declared and is refused.
struct Report {
  int64_t index = -1;
};

/// The reports of one model, in the order of their declaration, which is the same on all ranks.
class Reports {
 public:
  struct Declared {
    std::string name;
    int64_t size = 1;
    Over over = Over::Sum;
    bool is_loss = false;
    double weight = 0;     ///< weight of a loss term; 0 for other values
    bool has_row = false;  ///< true = a loss term with a row of its own
    int64_t first = 0;     ///< index of its first element: among the maxima for Over::Max, otherwise among the sums
  };

  Reports() = default;
  /// `layout_axes`: axes along which the layout splits rows or tokens, in addition to the batch axes of `coordinates`.
  Reports(const tensor::MeshCoordinates& coordinates, const std::vector<std::string>& layout_axes);

  /// Declares a value. Errors ("model"): no name, or one that is taken; a size below 1.
  Report add(const ReportOptions& options);
  /// Declares a loss term. Errors ("model"): no name, or one that is taken; a weight that is not finite; Over::Sum and
  /// Over::Max.
  Report add_loss(const LossTermOptions& options);

  /// Returns the declaration of a report. Errors ("model"): a report that was not declared here.
  const Declared& at(const Report& report) const;
  const std::vector<Declared>& declared() const { return declared_; }
  /// Returns the number of elements of all sums, means and loss terms (sums()), and of all maxima (maxima()).
  int64_t sums() const { return sums_; }
  int64_t maxima() const { return maxima_; }
  /// Returns the number of ranks that have other rows or tokens of a micro-batch.
  int64_t ranks() const { return ranks_; }
  /// Returns true if the values of this rank are joined with the values of others. If several ranks hold the same
  /// hidden states, or other features of the same tokens, the values of the first one are joined. With Over::Same, only
  /// the values of the first rank of the stage are joined.
  bool joins(const Declared& declared) const {
    return is_first_copy_ && (declared.over != Over::Same || is_first_part_);
  }

 private:
  Report declare(Declared declared);

  std::vector<Declared> declared_;
  int64_t sums_ = 0, maxima_ = 0, ranks_ = 1;
  bool is_first_copy_ = true, is_first_part_ = true;
};

/// Values that the layers of this rank report in the passes of a training step, on the device of the model. No function
/// waits for the device. Recorded passes (tensor/graph.h) may add to it, because its tensors keep their addresses.
class ReportAccumulator {
 public:
  ReportAccumulator(Reports reports, at::Device device);

  /// Resets all values: sums to 0, maxima to -infinity. `loss_factor`: factor of the gradients of loss terms in
  /// addition to their weight. It is the loss scale divided by the number of micro-batches.
  void begin(double loss_factor);
  /// Adds a value of a micro-batch, of any dtype and of the declared number of elements.
  /// Errors ("model"): a report that was not declared, or another number of elements.
  void add(const Report& report, const at::Tensor& value);
  /// Returns y. Backward also goes through `loss`, with gradient weight x loss_factor; with Over::Mean it is divided by
  /// Reports::ranks(). Without grad mode, it only returns y.
  /// Errors ("model"): a report that is not a loss term; a loss that is not one fp32 or fp64 number.
  at::Tensor attach(const Report& term, const at::Tensor& loss, const at::Tensor& y) const;
  /// Returns a copy of all values, fp64 [sums() + maxima()]: the sums, then the maxima.
  at::Tensor values() const;

  const Reports& reports() const { return reports_; }

 private:
  Reports reports_;
  at::Tensor sums_, maxima_;  // fp64
  // fp64 scalar on the device, because recorded passes must read values that change from memory
  at::Tensor loss_factor_;
};

/// Part of a ForwardContext: what collects the values that layers report. Without it, nothing is reported and no loss
/// term is attached, as in evaluation.
struct ReportsOfStep {
  std::shared_ptr<ReportAccumulator> accumulator;  ///< null = none
};

/// Returns the accumulator of a step; null = none.
ReportAccumulator* accumulator_of(const ForwardContext& step);

/// The reports of a step, joined over all micro-batches, ranks and stages. The same on all ranks, bit by bit.
struct Reported {
  std::vector<std::vector<double>> values;  ///< indexed by Report::index
  /// True if gradients overflowed in fp16: the parameters are unchanged, and the values belong to the skipped step
  bool skipped = false;
  /// Number of micro-batches of the step. A value of Over::Same times it is the sum over them
  int64_t micro_batches = 1;

  /// Returns the values of a report. If no pass used it, they are zeros, or -infinity for Over::Max.
  /// Errors ("model"): a report that was not declared.
  const std::vector<double>& at(const Report& report) const;
};

}  // namespace colossal::nn
