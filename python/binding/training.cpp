// The training of a module of Python.
#include <pybind11/functional.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bind.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/train/first_values.h"
#include "colossal/train/gathered.h"
#include "colossal/train/module_training.h"
#include "colossal/train/whole_tensors.h"
#include "world.h"

namespace colossal::binding {
namespace {

using train::ModuleTraining;

using Weights = std::variant<std::string, std::map<std::string, at::Tensor>>;

std::shared_ptr<const checkpoint::WeightSource> weights_of(const std::optional<Weights>& weights) {
  if (!weights) return nullptr;
  if (const auto* path = std::get_if<std::string>(&*weights)) return train::weights_at(*path);
  return train::weights_in(std::get<1>(*weights));
}

Held<train::Gathered> gathered_scope(ModuleTraining& training, const std::vector<at::Tensor>& parameters) {
  return Held<train::Gathered>(new train::Gathered(training.gathered(parameters)));
}

void save_training(ModuleTraining& training, const std::string& folder, const std::string& extra) {
  training.save(folder, nlohmann::json::parse(extra));
}

std::optional<std::tuple<int64_t, std::string, std::string>> resume_training(ModuleTraining& training,
                                                                             const std::string& folder) {
  const std::optional<train::Resumed> resumed = training.resume(folder);
  if (!resumed) return std::nullopt;
  return std::tuple(resumed->step, resumed->extra.dump(), resumed->changes);
}

}  // namespace

void bind_training(py::module_& module) {
  py::class_<train::ModuleTensors>(module, "ModuleTensors", "The parameters and buffers of a module, by name.")
      .def(py::init<train::ModuleTensors::Named, train::ModuleTensors::Named, std::vector<at::Tensor>>(),
           py::arg("parameters"), py::arg("buffers"), py::arg("tables"));

  py::class_<train::FirstValues>(module, "FirstValues", "How parameters that are on meta get memory and values.")
      .def(py::init(
               [](std::function<at::Tensor(size_t, const at::Tensor&)> replace, const std::optional<Weights>& weights,
                  std::string prefix, std::map<std::string, std::string> aliases, std::vector<std::string> missing,
                  std::vector<std::string> ignored, std::function<void(size_t, const std::vector<at::Tensor>&)> init,
                  const std::vector<std::pair<std::string, std::vector<std::string>>>& submodules) {
                 train::FirstValues values{
                     std::move(replace), weights_of(weights), std::move(prefix), std::move(aliases),
                     std::move(missing), std::move(ignored),  std::move(init),   {}};
                 for (const auto& [name, parameters] : submodules) values.submodules.push_back({name, parameters});
                 return values;
               }),
           py::arg("replace"), py::arg("weights"), py::arg("prefix"), py::arg("aliases"), py::arg("missing"),
           py::arg("ignored"), py::arg("init"), py::arg("submodules"));

  py::class_<train::StepResult>(module, "StepResult", "The results of a training step, the same on all ranks.")
      .def_readonly("learning_rate", &train::StepResult::learning_rate)
      .def_readonly("gradient_norm", &train::StepResult::gradient_norm)
      .def_readonly("skipped", &train::StepResult::skipped)
      .def("__repr__", [](const train::StepResult& result) {
        return concat("StepResult(learning_rate=", result.learning_rate, ", gradient_norm=", result.gradient_norm,
                      ", skipped=", result.skipped ? "True" : "False", ")");
      });

  py::class_<train::Gathered, Held<train::Gathered>>(module, "Gathered", "A scope in which parameters are whole.")
      .def("end", &train::Gathered::end, WithoutGil());

  py::class_<train::WholeTensors, Held<train::WholeTensors>>(module, "WholeTensors",
                                                             "Reads whole tensors, one at a time.")
      .def(
          "next",
          [](train::WholeTensors& tensors) -> std::optional<std::pair<std::string, at::Tensor>> {
            auto found = tensors.next();
            if (!found) return std::nullopt;
            return std::pair(std::move(found->name), std::move(found->value));
          },
          WithoutGil());

  py::class_<ModuleTraining, Held<ModuleTraining>>(module, "Training", "One rank's replica of a module in training.")
      .def(py::init([](JoinedWorld& joined, const train::ModuleTensors& tensors, const run::Config& config,
                       const std::function<void()>& first_pass, const train::FirstValues* values) {
             const py::gil_scoped_release no_gil;
             return Held<ModuleTraining>(train::initialize(*joined.world, tensors, config, first_pass, joined.device,
                                                           values ? *values : train::FirstValues())
                                             .release());
           }),
           py::arg("world"), py::arg("tensors"), py::arg("config"), py::arg("first_pass"), py::arg("values"),
           py::keep_alive<1, 2>())
      .def("input", &ModuleTraining::input, py::arg("tensor"), WithoutGil())
      .def("zero_grad", &ModuleTraining::zero_grad, WithoutGil())
      .def("backward", &ModuleTraining::backward, py::arg("loss"), py::arg("weight"), WithoutGil())
      .def("step", &ModuleTraining::step, WithoutGil())
      .def("end_pass", &ModuleTraining::end_pass, WithoutGil())
      .def("mean", &ModuleTraining::mean, py::arg("value"), WithoutGil())
      .def("gathered", &gathered_scope, py::arg("parameters"), py::keep_alive<0, 1>(), WithoutGil())
      .def(
          "named_tensors",
          [](ModuleTraining& training) {
            return Held<train::WholeTensors>(new train::WholeTensors(training.named_tensors()));
          },
          py::keep_alive<0, 1>(), WithoutGil())
      .def(
          "save_pretrained",
          [](ModuleTraining& training, const std::string& folder, at::ScalarType dtype) {
            training.save_pretrained(folder, {}, dtype);
          },
          py::arg("folder"), py::arg("dtype"), WithoutGil())
      .def("save", &save_training, py::arg("folder"), py::arg("extra"), WithoutGil(),
           "Saves a checkpoint. `extra` is a JSON text.")
      .def(
          "resume", &resume_training, py::arg("folder"), WithoutGil(),
          "Continues from a checkpoint. Returns its step, the JSON text of its extra value and the changed keys of the "
          "config, or None.")
      .def("record", &ModuleTraining::record, py::arg("folder"), py::arg("module"), py::arg("command"), WithoutGil())
      .def("note", &ModuleTraining::note, py::arg("name"), py::arg("value"), WithoutGil())
      .def_property_readonly("loss", &ModuleTraining::loss)
      .def_property_readonly("steps_done", &ModuleTraining::steps_done);
}

}  // namespace colossal::binding
