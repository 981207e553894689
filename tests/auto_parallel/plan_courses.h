// Courses of modules that train under plans, and those of one process.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "colossal/auto_parallel/training.h"
#include "colossal/comm/run_ranks.h"
#include "support/tolerance.h"
#include "trace/modules.h"

namespace colossal::auto_parallel {

inline constexpr int64_t kRows = 8, kSteps = 4;
inline constexpr double kRate = 1e-2, kEpsilon = 1e-3;
inline constexpr double kAccuracy = 1e-10;  // relative to one process, in fp64

inline run::Config config_of(int64_t data, int64_t tensor, const std::string& name) {
  run::Config c;
  c.run.device = "cpu";
  c.run.folder = testing::TempDir() + "/auto-training-" + name;
  c.parallel.data = data;
  c.parallel.tensor.size = tensor;
  c.precision.mode = "fp64";
  c.optimizer.learning_rate = kRate;
  c.optimizer.warmup_steps = 0;
  c.optimizer.epsilon = kEpsilon;  // otherwise rounding decides the direction of small gradients
  c.training.steps = 2 * kSteps;
  c.training.batch_size = kRows;
  return c;
}

/// A module with its loss and its inputs, whatever its type.
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> loss;
  std::function<std::vector<at::Tensor>(int64_t step)> inputs;
};

template <class Module, class... Arguments>
Subject subject(double phase, Arguments... arguments) {
  auto module = std::make_shared<Module>(arguments...);
  trace::test::fill(*module, phase);
  return {module, trace::test::loss_of(*module), [module](int64_t step) { return module->inputs(kRows, step); }};
}

inline const std::map<std::string, std::function<Subject(double phase)>>& subjects() {
  static const std::map<std::string, std::function<Subject(double)>> all{
      {"mlp", [](double phase) { return subject<trace::test::Mlp>(phase); }},
      {"frozen", [](double phase) { return subject<trace::test::Mlp>(phase, true); }},
      {"largest", [](double phase) { return subject<trace::test::Largest>(phase); }},
      {"convolutions", [](double phase) { return subject<trace::test::ConvNet>(phase); }},
      {"evaluated",  // batch norm with its running statistics, which stay as they are
       [](double phase) {
         Subject made = subject<trace::test::ConvNet>(phase);
         made.module->eval();
         return made;
       }},
      {"transformer", [](double phase) { return subject<trace::test::Transformer>(phase, 2, 0.25); }},
      {"shared", [](double phase) { return subject<trace::test::Transformer>(phase, 1, 0.0, true); }},
  };
  return all;
}

/// Returns a replica's rows of the inputs of a step.
inline std::vector<at::Tensor> rows_of(const AutoTraining& training, const std::vector<at::Tensor>& whole) {
  std::vector<at::Tensor> rows;
  const int64_t count = kRows / training.replicas();
  for (const at::Tensor& input : whole) rows.push_back(input.narrow(0, training.replica() * count, count));
  return rows;
}

inline std::vector<double> losses_of(AutoTraining& training, const Subject& subject, int64_t steps) {
  std::vector<double> losses;
  for (int64_t i = 0; i < steps; ++i) {
    training.zero_grad();
    training.backward(rows_of(training, subject.inputs(training.steps_done())));
    training.step();
    losses.push_back(training.loss());
  }
  return losses;
}

using Values = std::map<std::string, at::Tensor>;

inline Values values_of(const torch::nn::Module& module) {
  Values values;
  for (const auto& p : module.named_parameters()) values[p.key()] = p.value().detach().clone();
  for (const auto& b : module.named_buffers()) values[b.key()] = b.value().clone();
  return values;
}

struct Course {
  std::vector<double> losses;
  Values values;
};

/// Returns the losses of one process and the values at the end. Without dropout they are those of torch itself, which
/// FollowsTorch checks.
inline Course alone(const std::string& name) {
  Course course;
  comm::run_ranks(1, [&](comm::World& world) {
    const Subject subject = subjects().at(name)(0);
    const auto training = auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0),
                                                    config_of(1, 1, name + "-alone"));
    course.losses = losses_of(*training, subject, kSteps);
    training->gather();
    course.values = values_of(*subject.module);
  });
  return course;
}

/// Expects the course to be that of one process. A step changes a value by at most kRate / kEpsilon times the error of
/// its gradient.
inline void expect_course(const Course& got, const Course& want) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i)
    if (!(std::abs(got.losses[i] - want.losses[i]) <= kAccuracy * std::abs(want.losses[i])))
      throw colossal::test::ParityError("loss " + std::to_string(i) + ": " + std::to_string(got.losses[i]) + ", want " +
                                        std::to_string(want.losses[i]));
  for (const auto& [key, value] : want.values) {
    const double largest = value.numel() > 0 ? value.abs().max().item<double>() : 0;
    colossal::test::expect_within(got.values.at(key).to(at::kDouble), value.to(at::kDouble),
                                  kSteps * kRate / kEpsilon * kAccuracy * (1 + largest), key);
  }
}

}  // namespace colossal::auto_parallel
