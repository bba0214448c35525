"""The models of Gu et al. (2025) by their names on the Hub (Table 8), and what the paper reports of their sinks."""

GPT2 = tuple(f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"))
PYTHIA = tuple(
    f"EleutherAI/pythia-{size}" for size in ("14m", "31m", "70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")
)
OPT = tuple(f"facebook/opt-{size}" for size in ("125m", "350m", "1.3b", "2.7b", "6.7b", "13b"))
LLAMA2_7B, LLAMA2_13B = "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-13b-hf"
LLAMA3, LLAMA31 = "meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3.1-8B"
MISTRAL = "mistralai/Mistral-7B-v0.1"
JAMBA, JAMBA_MINI = "ai21labs/Jamba-v0.1", "ai21labs/AI21-Jamba-1.5-Mini"
GPT2_LARGE, GPT2_XL = GPT2[2:]

CHAT_OF = {  # by base model
    MISTRAL: "mistralai/Mistral-7B-Instruct-v0.1",
    LLAMA2_7B: "meta-llama/Llama-2-7b-chat-hf",
    LLAMA2_13B: "meta-llama/Llama-2-13b-chat-hf",
    LLAMA3: f"{LLAMA3}-Instruct",
    LLAMA31: f"{LLAMA31}-Instruct",
}
_WITH_CHATS = tuple(model for pair in CHAT_OF.items() for model in pair)
TABLE_8 = (*GPT2, *PYTHIA, *OPT, *_WITH_CHATS, JAMBA, JAMBA_MINI)

SINK_OF = {  # Sink_1 on natural text, without BOS, T=64, epsilon=0.3: Table 1 and appendix B.3
    GPT2_XL: 0.7700,
    MISTRAL: 0.9749,
    CHAT_OF[MISTRAL]: 0.8834,
    LLAMA2_7B: 0.9247,
    CHAT_OF[LLAMA2_7B]: 0.9288,
    LLAMA2_13B: 0.9169,
    CHAT_OF[LLAMA2_13B]: 0.9094,
    LLAMA3: 0.9902,
    CHAT_OF[LLAMA3]: 0.9885,
    JAMBA: 0.8848,
    JAMBA_MINI: 0.8788,
}
