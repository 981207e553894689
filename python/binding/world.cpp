// The ranks of a run.
#include "world.h"

#include <pybind11/functional.h>

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/launch/launch.h"
#include "colossal/memory/account.h"
#include "colossal/memory/host_memory.h"

namespace colossal::binding {

JoinedWorld::JoinedWorld(std::unique_ptr<comm::World> joined, at::Device chosen)
    : world(std::move(joined)), device(chosen) {
  std::vector<int> ranks(world->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  all = world->make_group("python", ranks);
}

namespace {

Held<JoinedWorld> launch_world(const std::string& backend, const std::string& device, double timeout, bool keep_memory,
                               const std::function<void(const std::string&)>& say) {
  const py::gil_scoped_release no_gil;
  if (keep_memory) {
    memory::track_host_memory();
    memory::keep_host_memory();
  }
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(timeout));
  const bool on_cpu = comm::choose_device(device, 0).is_cpu();
  auto world = comm::launch(
      {.backend = backend, .timeout = limit, .watchdog = limit, .device = on_cpu ? "cpu" : "cuda", .note = say});
  const at::Device chosen = comm::choose_device(device, world->local_rank());
  if (const std::string why = comm::why_gpus_are_unused(device); world->rank() == 0 && !why.empty()) say(why);
  world->on_stall([say](const comm::Stall& stall) {
    if (stall.seen_here) say("waiting: " + stall.text);
  });
  return Held<JoinedWorld>(new JoinedWorld(std::move(world), chosen));
}

}  // namespace

void bind_world(py::module_& module) {
  py::class_<JoinedWorld, Held<JoinedWorld>>(module, "World", "All ranks of a run, as seen by one of them.")
      .def_property_readonly("rank", [](const JoinedWorld& w) { return w.world->rank(); })
      .def_property_readonly("size", [](const JoinedWorld& w) { return w.world->size(); })
      .def_property_readonly("local_rank", [](const JoinedWorld& w) { return w.world->local_rank(); })
      .def_property_readonly("local_size", [](const JoinedWorld& w) { return w.world->local_size(); })
      .def_property_readonly("backend", [](const JoinedWorld& w) { return w.world->backend(); })
      .def_readonly("device", &JoinedWorld::device)
      .def(
          "barrier", [](JoinedWorld& w) { w.all->barrier().wait(); }, WithoutGil())
      .def(
          "mean", [](JoinedWorld& w, double value) { return comm::sum(*w.all, value) / w.world->size(); },
          py::arg("value"), WithoutGil());
  module.def("launch", launch_world, py::arg("backend"), py::arg("device"), py::arg("timeout"), py::arg("keep_memory"),
             py::arg("say"), "Joins the other ranks. `say` gets messages for the user, on any thread.");
}

}  // namespace colossal::binding
