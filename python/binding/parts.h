// The parts of the module `colossal._binding` beside training: bind.h has the others.
#pragma once
#include "bind.h"

namespace colossal::binding {

/// Adds Engine and Request.
void bind_engine(py::module_& module);
/// Adds Drawer and Drawing.
void bind_drawer(py::module_& module);
/// Adds Tokenizer, ChatTemplate and has_chat_template().
void bind_text(py::module_& module);
/// Adds load_checkpoint() and save_checkpoint().
void bind_checkpoint(py::module_& module);
/// Adds run_folder().
void bind_run(py::module_& module);
/// Adds version() and build_info().
void bind_build(py::module_& module);

}  // namespace colossal::binding
