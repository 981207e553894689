// The Python module `colossal._binding`.
#include "bind.h"

PYBIND11_MODULE(_binding, module) {
  module.doc() = "The compiled part of colossal. Use the classes and functions of the package colossal.";
  colossal::binding::bind_errors(module);
  colossal::binding::bind_config(module);
  colossal::binding::bind_world(module);
  colossal::binding::bind_training(module);
}
