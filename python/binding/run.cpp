// What Python has to know of a run that the program trains.
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "colossal/run/config.h"
#include "parts.h"

namespace colossal::binding {

void bind_run(py::module_& module) {
  module.def(
      "run_folder",
      [](const std::string& path, const std::vector<std::string>& flags) {
        return run::read_given_config(path, flags).config.run.folder;
      },
      py::arg("path"), py::arg("flags"), WithoutGil());
}

}  // namespace colossal::binding
