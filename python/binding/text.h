// The tokenizer that Python holds. It may be that of an engine.
#pragma once
#include <memory>

#include "colossal/text/tokenizer.h"

namespace colossal::binding {

struct Tokenizer {
  std::shared_ptr<const text::Tokenizer> held;
};

}  // namespace colossal::binding
