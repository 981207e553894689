// The parts of the Python module `colossal._binding`. A part converts arguments and results, and releases the GIL
// around each call that computes, waits or communicates. The library below and the Python layer above do the rest.
#pragma once
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

namespace colossal::binding {

/// Releases the GIL for the duration of a call.
using WithoutGil = py::call_guard<py::gil_scoped_release>;

/// Holder of an object of Python. It destroys the object without the GIL, because the object's threads may need the GIL
/// to end. A forked child leaves the object alone, because it has none of these threads and is no rank of the run.
template <class T>
struct DestroyWithoutGil {
  void operator()(T* object) const {
    if (getpid() != process) return;
    const py::gil_scoped_release no_gil;
    delete object;
  }
  pid_t process = getpid();
};
template <class T>
using Held = std::unique_ptr<T, DestroyWithoutGil<T>>;

/// Adds the translation of exceptions: colossal::Error becomes colossal.Error of Python.
void bind_errors(py::module_& module);
/// Adds Config and read_config().
void bind_config(py::module_& module);
/// Adds World and launch().
void bind_world(py::module_& module);
/// Adds Training, the training of one module.
void bind_training(py::module_& module);

}  // namespace colossal::binding
