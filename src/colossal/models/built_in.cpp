#include "colossal/models/built_in.h"

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
      .add(dit_architecture())
      .add(unet_architecture())
      .add(sd3_architecture())
      .add(flux_architecture())
      .add(open_sora_architecture())
      .add(stdit_architecture())
      .add(autoencoder_kl_architecture())
      .add(patch_discriminator_architecture())
      .add(hunyuan_video_vae_architecture())
      .add(open_sora_vae_architecture())
      .add(alphafold2_architecture())
      .add(clip_text_architecture())
      .add(clip_vision_architecture())
      .add(bert_architecture())
      .add(esm2_architecture())
      .add(esmfold_architecture())
      .add(t5_architecture());
  return registry;
}

}  // namespace colossal::models
