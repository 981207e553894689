// The families of models that the library has: what built_in() (models/registry.h) registers. A family is one file of
// models/families, with its function here and its row in built_in.cpp. Its own keys stand in a header beside the file
// if others use them by their type.
#pragma once
#include "colossal/models/registry.h"

namespace colossal::models {

/// GPT-2 (Radford et al. 2019) and the GPT-3 sizes (arXiv:2005.14165): pre-norm blocks, LayerNorm, GELU, learned
/// positions. With experts, it is a mixture (arXiv:2101.03961).
Architecture gpt2_architecture();
/// GPT-NeoX and Pythia (arXiv:2204.06745, arXiv:2304.01373): attention parallel to the feed-forward layer, rotary
/// positions for a part of each head.
Architecture gpt_neox_architecture();
/// GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward layer read one norm, rotary positions rotate the first
/// features of each head, and the head has a bias.
Architecture gptj_architecture();
/// Falcon (arXiv:2311.16867): multi-query or grouped attention parallel to the feed-forward layer, rotary positions or
/// ALiBi.
Architecture falcon_architecture();
/// OPT (arXiv:2205.01068): learned positions that start at row 2 of their table, and ReLU.
Architecture opt_architecture();
/// BLOOM (arXiv:2211.05100): ALiBi instead of positions, and a norm after the embedding.
Architecture bloom_architecture();
/// PaLM (Chowdhery et al. 2022, arXiv:2204.02311): attention with one key and value head parallel to a gated
/// feed-forward layer, no biases, one table for embedding and head. It has no Hugging Face folder.
Architecture palm_architecture();
/// LLaMA 1 to 3 (arXiv:2302.13971): pre-norm blocks, RMSNorm, SwiGLU, rotary positions, grouped queries. With a sliding
/// window, it is Mistral (arXiv:2310.06825); with experts, Mixtral (arXiv:2401.04088).
Architecture llama_architecture();
/// Qwen2 and Qwen2.5 (arXiv:2407.10671, arXiv:2412.15115): LLaMA's blocks with biases of q, k and v, and optional
/// windows in some layers.
Architecture qwen2_architecture();
/// Qwen3 (arXiv:2505.09388), dense models and mixtures of experts: LLaMA's blocks with norms of the q and k heads, a
/// free head size, and optional windows in some layers.
Architecture qwen3_architecture();
/// Gemma 2 (arXiv:2408.00118): norms with a unit offset around both branches of a block, GELU gates, windows in every
/// second layer, capped scores and logits, and a scaled embedding.
Architecture gemma2_architecture();
/// Phi-3 (arXiv:2404.14219): LLaMA's blocks. Its folders store q, k and v in one tensor, and gate and up in another. It
/// may rotate a part of each head, and may have an attention window.
Architecture phi3_architecture();
/// DeepSeek-V2 and V3 (arXiv:2405.04434, arXiv:2412.19437): LLaMA's blocks with latent attention, and mixtures of
/// experts with shared experts. Folders of model_type deepseek_v3 have sigmoid scores and balance biases, those of
/// deepseek_v2 softmax scores. Multi-token layers (models/multi_token.h) follow the blocks in a folder.
Architecture deepseek_architecture();
/// Vision Transformer (arXiv:2010.11929): patches, a class token, learned positions, pre-norm blocks without a causal
/// mask, exact GELU.
Architecture vit_architecture();
/// DeiT (arXiv:2012.12877), a ViT with a second learned token after the first, for distillation, which attention
/// includes. The head reads the class token, as in DeiTForImageClassification. With VitSizes::distillation_head a
/// second head reads the distillation token, and the logits are the mean of both heads, as in
/// DeiTForImageClassificationWithTeacher.
Architecture deit_architecture();
/// DiT (arXiv:2212.09748, models/families/dit.h): a transformer that predicts the noise of a picture, with norms and
/// branches that time and class modulate. Its blocks read the conditioning vector as a second hidden state.
Architecture dit_architecture();
/// The UNet of Stable Diffusion 1.5 and 2.1 (arXiv:2112.10752, models/families/unet.h), which predicts the noise of a
/// latent: ResNets and transformers over the pixels of several levels. Each of them is a block; what a level makes on
/// the way down waits as a state for the way up.
Architecture unet_architecture();
/// The transformers of Stable Diffusion 3 (arXiv:2403.03206) and of FLUX (models/families/mmdit.h), which predict the
/// flow of a latent. The words of a caption and the patches have layers of their own and attend to each other as one
/// sequence; in FLUX's last blocks they share the layers.
Architecture sd3_architecture();
Architecture flux_architecture();
/// The transformer of Open-Sora 2 (arXiv:2503.09642, models/families/mmdit.h): FLUX's with the patches of all frames of
/// a clip as one sequence, and a layer that reads given frames.
Architecture open_sora_architecture();
/// STDiT3 (arXiv:2412.20404, models/families/stdit.h), which predicts the noise of a clip: blocks attend in turn among
/// the places of a frame and among the frames of a place, and to a caption. Time and frame rate modulate them.
Architecture stdit_architecture();
/// AutoencoderKL (arXiv:2112.10752, models/families/autoencoder_kl.h): encodes pictures as latents of fewer cells and
/// decodes them, with convolutions, GroupNorms and one attention at the smallest size. Its blocks pass on hidden states
/// of the sizes of their level, and the moments of the latent.
Architecture autoencoder_kl_architecture();
/// The discriminator of patches (PatchGAN, arXiv:1611.07004, models/families/patch_discriminator.h), which trains
/// together with an autoencoder: convolutions and GroupNorms end in a score for each patch of a picture.
Architecture patch_discriminator_architecture();
/// AlphaFold 2 (doi:10.1038/s41586-021-03819-2, models/families/alphafold2.h), which folds a protein: attention and
/// triangle layers on an alignment and on pairs of residues, then a structure module. It reads what it has made before.
Architecture alphafold2_architecture();
/// The autoencoders of clips of HunyuanVideo (arXiv:2412.03603, models/families/hunyuan_video_vae.h) and of Open-Sora
/// 1.2 (arXiv:2412.20404, models/families/open_sora_vae.h): convolutions that are causal in time. The first one reads
/// clips whole; the second one encodes each frame with an AutoencoderKL, and then chunks of 17 frames.
Architecture hunyuan_video_vae_architecture();
Architecture open_sora_vae_architecture();
/// The text transformer of CLIP (arXiv:2103.00020, models/families/clip_text.h), which reads captions for a denoiser:
/// pre-norm blocks, a causal mask, learned positions, and an optional projection of one token's state.
Architecture clip_text_architecture();
/// The vision transformer of CLIP (arXiv:2103.00020, models/families/clip_vision.h), which embeds a picture for an
/// IP-adapter: patches and a class token, a norm before pre-norm blocks, and a projection of the class token's state.
Architecture clip_vision_architecture();
/// BERT (arXiv:1810.04805): a post-norm encoder (each norm follows a residual sum) with learned positions and token
/// types, and one of two heads after the blocks, by BertSizes::objective. "masked-token": dense, activation, norm, and
/// a projection to the vocabulary that shares the embedding's weight (unless ModelShape::tied is false) and has a bias.
/// "class": of the first token alone dense, tanh and dropout, and a classifier.
Architecture bert_architecture();
/// ESM-2 (Lin et al. 2023, doi:10.1126/science.ade2574), which reads chains of amino acids from both sides: pre-norm
/// blocks with rotary positions and exact GELU, an embedding that follows the share of masked tokens, and BERT's head
/// for masked tokens.
Architecture esm2_architecture();
/// ESMFold (doi:10.1126/science.ade2574, models/families/esmfold.h), which folds a protein from its sequence: ESM-2, a
/// trunk of residues and pairs, and the structure module of AlphaFold 2. Its results are those of models/folding.
Architecture esmfold_architecture();
/// T5 (arXiv:1910.10683, models/families/t5.h): an encoder that reads a text, and a decoder that writes the answer.
/// Dropout applies after the embedding, on each branch and after the norm of each stack. Attention weights and the
/// inside of feed-forward layers have none.
Architecture t5_architecture();

}  // namespace colossal::models
