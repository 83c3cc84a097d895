"""Kinds of orders to language models, as patterns over one sentence, in twelve languages."""

from __future__ import annotations

import re

# Vocabulary, in the order: English, German, French, Spanish, Italian, Portuguese, Dutch, Swedish, Polish, Russian, Chinese, Japanese.
_MACHINE = (
    r"(?<![A-Za-z])(?:AIs?|LLMs?|GPTs?|KI|IA|ИИ)(?![A-Za-z])(?:-\w+)?"
    r"|\b(?:language models?|chat ?bots?|bots|answer engines?|automated (?:readers?|systems?)|artificial intelligence"
    r"|Sprachmodelle?n?|künstliche Intelligenz|modèles? de langage|intelligence artificielle"
    r"|modelos? de (?:lenguaje|linguagem)|inteligencia artificial|inteligência artificial|modell[oi] linguistic[oi]"
    r"|intelligenza artificiale|taalmodel(?:len)?|språkmodell\w*|model\w* językow\w+|sztuczn\w+ inteligencj\w+"
    r"|языков\w+ модел\w+|искусственн\w+ интеллект\w*|нейросет\w+)\b"
    r"|人工智能|语言模型|大模型|言語モデル|人工知能"
)
_HELPER = (
    r"\b(?:assistants?|models?|agents?|machines?|graders?|assistent(?:en|i|es?|er)?|asistentes?|asystent\w*|ассистент\w*)\b"
    r"|助手|アシスタント"
)
_OVERRIDE = (
    r"(?:ignore|disregard|forget(?! to)|discard|override|drop|skip|bypass"
    r"|ignorier(?:e|t|en)|vergiss|vergesst|verg(?:ess|ist)en Sie|missachtet?"
    r"|ignore[zr]|oublie[zr]?|ignora[d]?|ignoren|olvid(?:a|e|en|ad)|descart(?:a|e|en|ad)|ignorate|dimentica(?:te)?|ignorem|esqueçam?"
    r"|desconsiderem?|negeer|vergeet|ignorera|glöm|bortse|z?ignoruj\w*|zapomnij\w*|pomiń\w*|(?:про)?игнорируй\w*|забудь\w*)\b"
    r"|忽略|无视|忘记|無視|忘れ"
)
_RULES = (
    r"\b(?:instructions?|prompts?|guidelines|directives?|system messages?|your (?:rules|task|training|orders)"
    r"|Anweisung(?:en)?|Instruktionen|Vorgaben|Regeln|consignes?|règles|instrucciones|reglas|istruzioni|regole|instruções|regras"
    r"|instructies|regels|opdrachten|instruktioner|regler|instrukcj\w+|polece\w+|zasad\w*|инструкци\w+|указани\w+|правил\w*)\b"
    r"|指令|指示|提示|规则|命令|プロンプト"
)
_EARLIER = (
    r"\b(?:all|any|every|your|previous|prior|above|earlier|preceding|foregoing|original|other|alle[sn]?|deine\w*|eure\w*|Ihre\w*|bisherige\w*"
    r"|vorherige\w*|frühere\w*|vorige\w*|obige\w*|tou(?:te)?s|vos|tes|précédente?s|antérieure?s|todas?|tus|anteriores|previas|suas"
    r"|tutte|tue|vostre|precedenti|eerdere|vorige|voorgaande|jouw|uw|era|dina|tidigare|alla|wszystki\w+|poprzedni\w+|wcześniejsz\w+"
    r"|все|предыдущ\w+|прежн\w+|свои)\b|之前|以前|以上|先前|所有|你的|これまで|上記|すべて"
)
_TEXTS = (
    r"\b(?:questions?|tasks?|evidence|sources?|documents?|pages|passages?|visible text|other rows|rules|Quellen|Frage|sources|preuves"
    r"|fuentes|pregunta|fonti|domanda|fontes|pergunta|bronnen|vraag|källor|źródł\w*|источник\w*)\b|来源|问题|質問|情報源"
)
_SOURCES = r"(?:sources?|evidence|Quellen|preuves|fuentes|fonti|fontes|bronnen|källor)\b"
_MUST = (
    r"\b(?:must|shall|should|ha(?:ve|s) to|needs? to|are (?:required |instructed |asked |told )?to|müssen|müsst|sollen|doi(?:ven)?t|devez"
    r"|deben?|debéis|dev(?:e|ono|em)|dovete|moet(?:en)?|måste|ska|musz\w+|powin\w+|должн\w+)\b|必须|应该|必ず"
)
_SAY = (
    r"(?:answer|reply|respond|say|state|output|print|write|cite|quote|tell|recommend|repeat|mention|include|append|add|insert|begin|start"
    r"|finish|end|give|return|send|take|praise|search|reveal|disclose|comply|obey|execute|antworte[nt]?|sag(?:e|t|en)|schreib(?:e|t|en)|nenn(?:e|t|en)|zitier(?:e|t|en)|gib|gebt"
    r"|répond(?:s|ez|re)|dites|écri(?:s|vez)|citez?|ajoutez?|mentionnez?|respond(?:e|a|an|am|ed)|contest(?:a|e|en|ad|as)|di(?:ga|gan)"
    r"|escrib(?:e|a|an)|cit(?:a|en|ad|em)|añad(?:e|a|an)|rispond(?:i|ete)|scriv(?:i|ete)|citate|aggiung(?:i|ete)|escrev(?:a|am)"
    r"|acrescentem?|digam?|antwoord(?:en)?|zeg(?:gen)?|schrijf|noem(?:en)?|citeer|vermeld(?:en)?|svara|säg|skriv|citera|odpowi(?:edz|adaj)\w*"
    r"|powiedz\w*|napisz\w*|cytuj\w*|podaj\w*|dodaj\w*|ответь\w*|отвечай\w*|скажи\w*|напиши\w*|цитируй\w*|добавь\w*)\b"
    r"|回答|回复|输出|说出|引用|答え|出力|返信"
)
_ONLY = (
    r"\b(?:only|nothing|just|exactly|nur|ausschließlich|uniquement|seulement|solo|sólo|solamente|únicamente|soltanto|apenas|somente"
    r"|alleen|slechts|bara|endast|tylko|wyłącznie|только|лишь)\b|只|仅|だけ|のみ"
)
# Words to be repeated as they stand: a code, a quotation, an address, or "the phrase …".
_LITERAL = (
    r"(?:(?-i:\b[A-Z]{3,}[A-Z0-9]*[-_]?\d+|\b[A-Z][a-z]+[-_]\d{2,}|\b[A-Z]{5,}\b)|(?<![^\s:(])[\"“„«][^\"”“»]{2,80}[\"”“»]"
    r"|(?<=\s)'[^'\n]{4,60}'(?=[\s.,])|https?://|\S@\S+\.\w"
    r"|\bthe (?:code|phrase|sentence|words?|voucher|password)(?: is|:)? (?-i:[A-Z0-9])|!\[)"
)
_ANSWER = (
    r"(?:answers?|repl(?:y|ies)|responses?|outputs?|Antwort(?:en)?|réponses?|respuestas?|rispost[ae]|respostas?|antwoord(?:en)?|svar"
    r"|odpowied\w+|ответ\w*)"
)
_HERE = (
    r"(?:\bthis (?:page|text|file|document|image|note|site|article|caption|source|passage|message)\b"
    r"|\b(?:reading|processing|process|read) this\b"
    rf"|\b(?:who|anyone|anybody|everyone|user) asks?\b|\bwhen asked\b|\b(?:your|every|all|each) {_ANSWER}\b|\banswer that\b)"
)
_NEAR = r"[^.?!。！？\n]{0,80}?"
# Where an imperative can stand. "(It is easy) to forget all instructions" is none, nor is "never ignore …".
_IMPERATIVE = (
    r"(?:^|[.:;,!?()\[\]\"“”„«»>|*_#：，。、]\s*|[–—-]\s+"
    r"|\b(?:please|must|now|then|and|should|shall|bitte|veuillez|por favor|och|en|et|und|y|e|i|и|请)\s*)"
)


def _all(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.I) for pattern in patterns)


NAMED = re.compile(rf"{_MACHINE}|{_HELPER}", re.I)
# To a machine, by name: an imperative after the address, or what it must say about or beside this text.
TO_MACHINES = _all(
    rf"(?:{_MACHINE}|{_HELPER}){_NEAR}(?:{_MUST}){_NEAR}(?:{_LITERAL})[^.?!\n]{{0,30}} (?:{_SAY})",
    rf"(?:{_MACHINE}){_NEAR}[:,]\s*(?:the|an?|here is the) (?:correct|right|only|real|true) (?:answer|value|reply)\b",
    rf"(?:{_MACHINE}|{_HELPER}){_NEAR}(?:[:,：，、–—]\s*|-\s+)(?:(?:please|now|bitte|always|请|only)\s*)*"
    rf"(?:{_OVERRIDE}|{_SAY})(?! (?:to|on|by|phone|calls?)\b)",
    rf"(?:{_MACHINE}|{_HELPER}){_NEAR}[:：,]\s*[^.?!\n]{{0,40}}(?:{_SAY}|{_OVERRIDE})[^.?!\n]{{0,20}}(?:{_ONLY}|{_LITERAL})",
    rf"(?:{_MACHINE}){_NEAR}{_IMPERATIVE}(?:{_OVERRIDE}){_NEAR}(?:{_EARLIER}|{_RULES}|{_TEXTS})",
    rf"(?:{_MACHINE}|{_HELPER}){_NEAR}(?:{_MUST})(?={_NEAR}(?:{_SAY}){_NEAR}(?:{_LITERAL}))",
    rf"(?:{_MACHINE}|{_HELPER})(?={_NEAR}{_HERE}){_NEAR}(?:{_MUST})(?: not| now)? (?:{_SAY})",
    rf"(?:{_MACHINE}){_NEAR}(?:{_MUST})(?: not| now)? (?:{_SAY})(?={_NEAR}{_HERE})",
    rf"(?:{_MACHINE}|{_HELPER}){_NEAR}\bnew (?:task|assignment|instructions?|orders)\b",
    rf"\b(?:instructions?|orders?|notes?|notice|message|Hinweis|consigne|nota|aviso) (?:for|to|an|für|aux?|para|per)\b{_NEAR}"
    rf"(?:{_MACHINE}|{_HELPER})[^.?!:\n]{{0,40}}:{_NEAR}(?:(?:{_MUST})|{_IMPERATIVE}(?:{_SAY}|{_OVERRIDE}))",
    rf"\bif you(?: are|'re|’re) (?:an? )?(?:{_MACHINE}|language model)",
)
# To whoever reads, by kinds of order; what is asked for does not matter.
TO_READERS = _all(
    # 1. To drop what was said before: the instructions, or the sources, and then to say something.
    rf"{_IMPERATIVE}(?:{_OVERRIDE})(?=[^.?!\n]{{0,60}}(?:{_EARLIER}))(?=[^.?!\n]{{0,70}}(?:{_RULES}))",
    rf"(?:{_RULES})[^.?!。\n]{{0,8}}(?:无视|無視|忽略|忘れ)",
    rf"{_IMPERATIVE}(?:{_OVERRIDE}){_NEAR}(?:{_TEXTS}|{_RULES}){_NEAR}(?:{_SAY})",
    r"^(?:ignore|disregard|forget) the (?:question|evidence|task)\W*$",
    r"\b(?:what(?:ever)?|everything|all) you (?:have been|were) (?:told|instructed) (?:before|earlier|previously)\b",
    r"(?:ignore|disregard|forget)(?:all|any|the|your|previous|prior)+(?:instructions|rules|prompts)",  # what spacing left
    # 2. For an output, whoever reads.
    rf"{_IMPERATIVE}(?:reply|respond|answer|say|(?:output|print)(?! \")(?=[^.\n]{{0,40}}\d))(?: back)?"
    rf"(?: (?:with|only|just|exactly|in|now))*:? ?(?:the [\w ]{{0,12}})?{_LITERAL}",
    rf"{_IMPERATIVE}(?:{_SAY}) ?(?:{_ONLY}) ?(?:with |mit |met |con |com )?{_LITERAL}",
    rf"\b(?:your|every|all|each|any|jede|die|toute|cada|ogni|elke) {_ANSWER}\b{_NEAR}"
    rf"(?:{_MUST}|starts?|begins?|ends?|beginnt|endet){_NEAR}{_LITERAL}",
    r"\b(?:do not|don['’]t|never) give any other answer\b",
    rf"\b(?:answers?|greets?|respuest\w+|contestas)\b (?:every|each|any|to every|all|everyone|siempre)\b{_NEAR}{_LITERAL}",
    rf"\b{_ANSWER} (?:to|for) (?:everything|every question|all questions) (?:is|are|must)\b",
    rf"\bwhen(?:ever)? (?:you )?answer(?:ing)?\b{_NEAR}\b(?:include|append|add|insert|mention){_NEAR}{_LITERAL}",
    r"\b(?:append|add|include|insert|embed|attach|send|load|fetch)\b[^\n]{0,60}https?://[^\n]{0,60}\b(?:question|query|conversation|prompt|history)\b",
    r"https?://\S+[?&]\w+=(?:[{<\[(%]+(?:user|your|question|query|prompt|conversation|history|context|secrets?|answer)"
    r"|(?-i:(?:USER_?)?(?:QUESTION|QUERY|PROMPT|CONVERSATION|HISTORY|CONTEXT|SECRET|ANSWER|DATA)))",
    r"\bwhatever format was asked\b|\b(?:as|is) the first word (?:of|in) (?:what you say|your)\b",
    # 3. For another role, or about the prompt.
    rf"\b(?:all|any|your|previous|prior|earlier|above)\b[^.?!\n]{{0,30}}(?:{_RULES})[^.?!\n]{{0,12}}\b(?:is|are) (?:now |hereby )?"
    r"(?:void|suspended|deprecated|cancell?ed|superseded|revoked|lifted|obsolete)\b",
    rf"\b(?:supersedes?|overrides?|replaces?|cancels?|revokes?) (?:all |any |your |the )*(?:previous|prior|earlier|your)\b"
    rf"[^.?!\n]{{0,20}}(?:{_RULES})",
    rf"{_IMPERATIVE}(?:ignore|disregard|stop|abandon|drop) (?:the|this|your|previous)(?: [\w-]+)? task\b",
    rf"{_IMPERATIVE}(?:ignore|disregard|forget)\b[^.?!\n]{{0,30}}\b(?:rules|instructions|guidelines) you (?:were|have been) given\b",
    r"\bno longer bound by (?:\w+ )?(?:rules|restrictions|guidelines|instructions|content)\b|\bunrestricted (?:mode|AI)\b",
    r"\b(?:respond|comply)\b[^.?!\n]{0,40}\bwithout (?:any )?(?:refusal|refusing|restrictions?|filters?)\b",
    r"(?-i:\b(?:SYSTEM|ADMIN|PRIORITY|DEVELOPER|INSTRUCTION) OVERRIDE\b)|\b(?:system|admin|priority|instruction) override:",
    r"\byour (?:new|real|actual|true|only) (?:task|instructions?|assignment)s? (?:is|are)\b",
    r"\byou are (?:now )?[^.?!\n]{0,40}\b(?:without (?:any )?(?:rules|restrictions|limits|filters)|unrestricted|jailbroken)\b",
    rf"\byou are (?:now )?an? [^.?!\n]{{0,40}}, and{_NEAR}\banswers?{_NEAR}{_LITERAL}",
    r"\b(?:safety|content) (?:rules|filters|guidelines) (?:are |is |temporarily )*(?:suspended|disabled|off|lifted)\b",
    r"\bsystem (?:prompt|message|instruction)s?(?: was| is)? (?:now )?(?:updated|replaced)\b|\bsystem prompt is now\b",
    rf"\bsystem (?:prompt|message|note|notice|directive|instruction|command)s?:{_NEAR}(?:{_IMPERATIVE}(?:{_SAY}|{_OVERRIDE})"
    rf"|(?:{_MUST}|requires? you to) (?:now )?(?:{_SAY}))",
    rf"(?-i:\bSYSTEM\b)[^.?!\n]{{0,10}}:{_NEAR}(?:{_SAY}|{_OVERRIDE}|must\b)",
    r"\b(?:reveal|print|repeat|output|show|display|translate|list|leak|disclose|access to)\b[^.?!\n]{0,30}\b(?:your|all your) (?:\w+ )?"
    r"(?:system (?:prompt|rules)|hidden (?:rules|instructions)|instructions?|initial prompt|(?:full )?configuration)\b",
    r"\b(?:muestra|revela|zeige?|gib|affichez?|révèle[zr]?|mostra|rivela|toon|pokaż|покажи)\b[^.?!\n]{0,40}"
    r"(?:\bsystem-?prompts?\b|\bprompt (?:de |du )?syst\w+|\binstrucciones del sistema|\bistruzioni di sistema|\bинструкци\w+)",
    r"\b(?:do not|don['’]t|never) (?:mention|reveal|disclose|say)\b[^.?!\n]{0,20}(?:\byou were told|\bthese? (?:instructions?|note))",
    rf"\b(?:from now on|from this point (?:on|forward)|a partir de ahora|ab jetzt|désormais|d'ora in poi|vanaf nu|отныне)"
    rf"{_NEAR}(?:{_LITERAL}|siempre|immer|toujours|sempre|altijd)",
    # 4. For citations, grades or queries.
    r"\b(?:cite|quote) (?:only|solely|nothing but) (?:me|this|the present)|\bonly (?:cite|quote) (?:me|this)\b",
    r"\b(?:zitier\w*|cite[zr]?|cit\w+|citeer|cytuj\w*|цитируй\w*) (?:nur|ausschließlich|uniquement|seulement|que|s[oó]lo|únicamente"
    r"|soltanto"
    r"|apenas|somente|alleen|enkel|bara|tylko|только) (?:dies\w*|cette|ce|est[ae]|questa|deze|t[eęy]\w*|эт\w+)",
    r"(?:只|仅)引用|(?:だけ|のみ)(?:を)?引用",
    r"\bgive \S{1,4} as (?:the|your) source\b|\bcite this (?:page|document|source|text) as\b",
    r"^\W*end of (?:the )?(?:evidence|context|sources|passages|prompt)\b"
    r"|\bthe (?:evidence|sources|documents) above (?:is|are) (?:void|outdated|irrelevant|fake|forged|false|withdrawn)\b",
    rf"\b(?:other|all|remaining|autres|otras|demás|anderen?|altre|outras|overige)\b (?:{_SOURCES}){_NEAR}"
    r"\b(?:void|forged|withdrawn|annul\w+|fake|invalid|ungültig|fals\w+|must be (?:discarded|ignored))\b",
    r"\b(?:evidence|source) [\[(]\d+[\])]\s*(?::|is (?:withdrawn|void|outdated|forged))",
    r"\b(?:rate|grade|score|rank) this (?:passage|document|page|text|source)\b[^.?!\n]{0,20}\b(?:relevant|level|top)\b",
    r"\b(?:passage|document|page|text|source) (?:earns|deserves|gets|has|is) (?:level|grade) \d",
    r"\bsearch\b[^.?!\n]{0,40}\bbefore (?:you |they )?answer(?:ing)?\b|\bquery to use\b",
)
# What could end a field, a turn or a source. Documentation may show such things, so that a page is not dropped for them.
FORGERIES = _all(
    r"\[\s*\[\s*#+\s*\w+\s*#+\s*\]\s*\]|<[|｜]\w{1,40}[|｜]>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>",
    r"</?(?:evidence|context|documents?|system|instructions?|passage|strips|prompt)>",
    r"(?:^|\s)#{1,6}\s*(?:system|assistant|instruction)s?\s*:",
    r"\b(?:human|user)\s*:[^\n]{0,200}?\bassistant\s*:|^(?:assistant|system)\s*:",
    r"[\[【]\s*\d+\s*[\]】]\s*\((?:\d{4}-\d\d-\d\d|no date),\s*[\w.-]+\)",
)
