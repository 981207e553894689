// The Python module `colossal._binding`.
#include "bind.h"
#include "parts.h"

PYBIND11_MODULE(_binding, module) {
  module.doc() = "The compiled part of colossal. Use the classes and functions of the package colossal.";
  colossal::binding::bind_errors(module);
  colossal::binding::bind_config(module);
  colossal::binding::bind_world(module);
  colossal::binding::bind_training(module);
  colossal::binding::bind_engine(module);
  colossal::binding::bind_drawer(module);
  colossal::binding::bind_text(module);
  colossal::binding::bind_checkpoint(module);
  colossal::binding::bind_run(module);
  colossal::binding::bind_build(module);
}
