#include "colossal/models/task.h"

namespace colossal::models {

const char* Task::purpose() const {
  if (reads == Reads::Images) return "classifies images";
  if (objective == Objective::Target) return "generates a target text from a source text";
  return objective == Objective::NextToken     ? "continues text"
         : objective == Objective::MaskedToken ? "fills in masked tokens"
                                               : "classifies text";
}

}  // namespace colossal::models
