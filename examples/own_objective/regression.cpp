#include "regression.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/nn/forward_context.h"
#include "network.h"
#include "table.h"

namespace models = colossal::models;
namespace nn = colossal::nn;
namespace run = colossal::run;
namespace tensor = colossal::tensor;
using colossal::require;

void RegressionKeys::fields(colossal::Fields& f) {
  f.text("target", target, "column of the table that is predicted");
  f.text("unit", unit, "unit of that column");
}

void TableKeys::fields(colossal::Fields& f) { f.choice("separator", separator, {",", ";"}, "mark between columns"); }

namespace {

class Regression : public run::Objective {
 public:
  Regression(const run::Config& config, RegressionKeys keys, const TableKeys& table, const models::ModelShape& shape)
      : keys_(std::move(keys)),
        sizes_(shape.own.as<NetworkSizes>()),
        all_(Table::read(config.data.path, keys_.target, table.separator[0])) {
    const auto columns = static_cast<int64_t>(all_.columns.size());
    require(columns == sizes_.inputs && sizes_.outputs == 1, "model",
            "a network must have an input for each other column of the table and one output: got ", sizes_.inputs,
            " inputs, ", sizes_.outputs, " outputs, ", columns, " columns; set model.inputs = ", columns,
            " and model.outputs = 1");
    if (config.data.held_out > 0) held_out_ = all_.take_last(config.data.held_out);
    scales_ = Scales::of(all_);
  }

  run::OpenedData open(const run::DataRequest& request) const override {
    run::OpenedData data{.training = std::make_shared<TableSamples>(all_, scales_)};
    if (run::evaluates(request.config) && !held_out_.targets.empty())
      data.held_out = std::make_shared<TableSamples>(held_out_, scales_);
    return data;
  }

  tensor::Batch example(int64_t rows) const override { return table_batch(rows, sizes_.inputs, true); }

  void check(const tensor::Batch& batch) const override {
    const at::Tensor &inputs = batch.at("inputs"), &targets = batch.at("targets"), &counts = batch.at("counts");
    require(inputs.dim() == 3 && inputs.size(1) == 1 && inputs.size(2) == sizes_.inputs, "data",
            "inputs must be [B, 1, ", sizes_.inputs, "]: got ", inputs.sizes());
    require(targets.dim() == 2 && targets.size(1) == 1, "data", "targets must be [B, 1]: got ", targets.sizes());
    require(counts.sizes() == targets.sizes(), "data", "counts must be [B, 1]: got ", counts.sizes());
  }

  double weight(const tensor::Batch& batch) const override { return batch.at("counts").sum().item<double>(); }

  at::Tensor loss(const models::Model&, const models::States& end, const nn::ForwardContext& step) const override {
    const at::Tensor predicted = end.at(0).squeeze(1);  // [B, 1, 1] -> [B, 1]
    const at::Tensor error = predicted - step.batch->at("targets").to(predicted.scalar_type());
    return (error * error * step.batch->at("counts").to(predicted.scalar_type())).sum();
  }

  std::vector<colossal::Metric> metrics(const std::vector<double>& sums, double weight) const override {
    std::vector<colossal::Metric> rows = Objective::metrics(sums, weight);
    rows.push_back({.name = "rmse",
                    .value = std::sqrt(run::mean_of(sums.at(0), weight)) * scales_.target.deviation,
                    .unit = keys_.unit,
                    .plot = "Error on held-out rows",
                    .line = "rmse %.3f"});
    return rows;
  }

 private:
  RegressionKeys keys_;
  NetworkSizes sizes_;
  Table all_, held_out_;  // take_last() moves the held-out rows from all_ to held_out_
  Scales scales_;
};

}  // namespace

run::ObjectiveRow regression() {
  return {.name = "regression",
          .tables = {{"regression", RegressionKeys{}}},
          .data = TableKeys{},
          .make = [](const run::Config& config, const run::OwnTables& tables, const models::ModelShape& shape) {
            return std::make_unique<Regression>(config, tables.as<RegressionKeys>("regression"),
                                                tables.data<TableKeys>(), shape);
          }};
}
