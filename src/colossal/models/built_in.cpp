#include "colossal/models/bert.h"
#include "colossal/models/gpt2.h"
#include "colossal/models/llama.h"
#include "colossal/models/qwen2.h"
#include "colossal/models/qwen3.h"
#include "colossal/models/registry.h"
#include "colossal/models/vit.h"

namespace colossal::models {

Registry built_in() {
  Registry registry;
  registry.add(gpt2_architecture())
      .add(llama_architecture())
      .add(qwen2_architecture())
      .add(qwen3_architecture())
      .add(vit_architecture())
      .add(bert_architecture());
  return registry;
}

}  // namespace colossal::models
