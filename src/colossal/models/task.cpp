#include "colossal/models/task.h"

namespace colossal::models {

const char* Task::purpose() const {
  if (reads == Reads::Images) return "classifies images";
  if (reads == Reads::Fields)
    return objective == "diffusion"        ? "draws pictures"
           : objective == "reconstruction" ? "encodes and decodes pictures"
           : objective == "folding"        ? "folds proteins"
                                           : "reads fields of its own";
  if (answers()) return "generates a target text from a source text";
  if (continues()) return "continues text";
  if (scores()) return "scores text";
  return classes > 0 ? "classifies text" : objective == "masked-token" ? "fills in masked tokens" : "reads text";
}

}  // namespace colossal::models
