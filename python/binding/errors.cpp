// Exceptions of the library, as Python raises them.
#include <torch/csrc/Exceptions.h>

#include "bind.h"
#include "colossal/base/error.h"

namespace colossal::binding {
namespace {

void raise(const Error& error) {
  const py::object type = py::module_::import("colossal.error").attr("Error");
  const py::object raised = type(error.component(), error.message());
  PyErr_SetObject(type.ptr(), raised.ptr());
}

/// Sets the exception of Python for one of this library or of LibTorch. Others are rethrown to pybind11's translators.
void translate(std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    raise(error);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(exception);
  } catch (python_error& error) {  // an exception of Python code that autograd called, such as a hook
    error.restore();
  }
}

}  // namespace

void bind_errors(py::module_&) { py::register_local_exception_translator(translate); }

}  // namespace colossal::binding
