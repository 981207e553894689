#include "colossal/models/bert.h"
#include "colossal/models/bloom.h"
#include "colossal/models/falcon.h"
#include "colossal/models/gemma2.h"
#include "colossal/models/gpt2.h"
#include "colossal/models/gpt_neox.h"
#include "colossal/models/gptj.h"
#include "colossal/models/llama.h"
#include "colossal/models/opt.h"
#include "colossal/models/palm.h"
#include "colossal/models/phi3.h"
#include "colossal/models/qwen2.h"
#include "colossal/models/qwen3.h"
#include "colossal/models/registry.h"
#include "colossal/models/t5.h"
#include "colossal/models/vit.h"

namespace colossal::models {

Registry built_in() {
  Registry registry;
  registry.add(gpt2_architecture())
      .add(gpt_neox_architecture())
      .add(gptj_architecture())
      .add(falcon_architecture())
      .add(opt_architecture())
      .add(bloom_architecture())
      .add(palm_architecture())
      .add(llama_architecture())
      .add(qwen2_architecture())
      .add(qwen3_architecture())
      .add(gemma2_architecture())
      .add(phi3_architecture())
      .add(vit_architecture())
      .add(deit_architecture())
      .add(bert_architecture())
      .add(t5_architecture());
  return registry;
}

}  // namespace colossal::models
