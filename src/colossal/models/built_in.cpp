#include "colossal/models/families/bert.h"
#include "colossal/models/families/bloom.h"
#include "colossal/models/families/deepseek.h"
#include "colossal/models/families/falcon.h"
#include "colossal/models/families/gemma2.h"
#include "colossal/models/families/gpt2.h"
#include "colossal/models/families/gpt_neox.h"
#include "colossal/models/families/gptj.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/families/opt.h"
#include "colossal/models/families/palm.h"
#include "colossal/models/families/phi3.h"
#include "colossal/models/families/qwen2.h"
#include "colossal/models/families/qwen3.h"
#include "colossal/models/families/t5.h"
#include "colossal/models/families/vit.h"
#include "colossal/models/registry.h"

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
      .add(deepseek_architecture())
      .add(vit_architecture())
      .add(deit_architecture())
      .add(bert_architecture())
      .add(t5_architecture());
  return registry;
}

}  // namespace colossal::models
