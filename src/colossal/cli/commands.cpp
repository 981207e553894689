#include "colossal/cli/commands.h"

namespace colossal::cli {

std::vector<Command> commands(const run::Program* program) {
  const auto with_program = [program](int (*command)(const Arguments&, const run::Program*)) {
    return [command, program](const Arguments& arguments) { return command(arguments, program); };
  };
  return {
      {"train", "train the model that a config file describes, on one rank or many", with_program(train)},
      {"generate", "generate text with a trained, Hugging Face or GGUF model", with_program(generate)},
      {"chat", "chat in the terminal with a model that has a chat template", with_program(chat)},
      {"serve", "serve a model over HTTP: OpenAI's API and a chat page", with_program(serve)},
      {"embed", "compute an embedding vector per text with BERT or a decoder model", with_program(embed)},
      {"evaluate", "measure a model: perplexity of a text, or tasks such as MMLU and GSM8K", with_program(evaluate)},
      {"score", "print the scores that a reward model gives texts, pairs and rankings", with_program(score)},
      {"draw", "draw pictures with Stable Diffusion, or a model that a run with [diffusion] trained",
       with_program(draw)},
      {"fold", "fold proteins: the places of their atoms, from sequences", with_program(fold)},
      {"compare", "compare two structures of proteins: RMSD, lDDT, TM-score, GDT-TS", compare},
      {"latents", "encode pictures and captions once, for runs that learn to draw them", with_program(latents)},
      {"features", "write what a folding model reads of a chain, its alignment and its templates", features},
      {"quantize", "quantize weights to 8 or 4 bits: round to nearest, GPTQ, AWQ or SmoothQuant",
       with_program(quantize)},
      {"export", "write a model as a Hugging Face folder or a GGUF file", with_program(export_model)},
      {"expand", "add the tokens of a new tokenizer to the vocabulary of a model", with_program(expand)},
      {"report", "write a page on one or several training runs: curves, samples, configs", report},
      {"rollouts", "show the answers that a run drew in training, with prompts, scores and verifier messages",
       rollouts},
      {"run", "start several ranks of a command or of any program on this host", run},
      {"plan", "predict memory and time of a run, or find the fastest way to share a traced module over ranks",
       with_program(plan)},
      {"schedule", "draw a pipeline schedule, or compare all schedules", schedule},
      {"schedule-lr", "draw the learning rate over a run, or compare all schedules", with_program(schedule_lr)},
      {"tokenize", "convert text to token ids and back, with the tokenizer of any model", tokenize},
      {"tokenizer", "learn a vocabulary from texts: `tokenizer train`", tokenizer},
      {"bench", "run a benchmark; `colossal bench` lists them", bench},
      {"models", "list the architectures: task, presets and keys of each", with_program(list_models)},
      {"info", "show what this machine and this build support", info},
      {"help", "show this list; `help COMMAND`: options of a command; `help config`: keys of a config file",
       [program](const Arguments& arguments) { return help(arguments, commands(program), program); }},
  };
}

const Command* find_command(const std::vector<Command>& commands, const std::string& name) {
  for (const Command& command : commands)
    if (name == command.name) return &command;
  return nullptr;
}

std::vector<std::string> names_of(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  return names;
}

}  // namespace colossal::cli
